"""`envgen upgrade` and its way back on two machines: real engines in network namespaces, reached by ssh."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pair import NUMBERS, Pair, machines_up
from projects import Project, docker
from toy_index import toy_project

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

NAME = "envgentestpairup"
CANDIDATE = f"{NAME}:prod-candidate"
MACHINES = {name: number - 100 for name, number in NUMBERS.items()}  # not those of the tests beside these
KEEP = ("--yes", "--keep", "--json")


@pytest.fixture(scope="module")
def pair(make_project: Callable[..., Project], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """The image is built on this engine, and loaded into those of the machines."""
    with toy_project(make_project, NAME, tmp_path_factory.mktemp("index")) as made:
        file = made.root / "envgen.yaml"
        text = re.sub(
            "ports: .*", 'ports: ["8000:8000"]\\n        cluster: {nodes: [spark-1, spark-2]}', file.read_text()
        )
        text = text.replace("[python3, -m, vllm.entrypoints.openai.api_server]", "[vllm, serve, /models/tiny]")
        text = text.replace("args: {port", "args: {served-model-name: test/toy, tensor-parallel-size: 2, port")
        file.write_text(
            text.replace("    targets:", "    caches: {models: {path: /models, host: ./models}}\n    targets:")
        )
        made.envgen("lock")
        made.envgen("build")
        image = tmp_path_factory.mktemp("image") / "image.tar"
        docker("save", "-o", str(image), f"{NAME}:prod", timeout=300)
        with machines_up(Path(f"/tmp/{NAME}-{os.getpid()}"), MACHINES, image) as up:
            pair = replace(up, folder=made.root, env={**up.env, "DOCKER_HOST": os.environ["DOCKER_HOST"]})
            pair.write()
            for node in MACHINES:
                model = made.root / "models" / node / "tiny"
                model.mkdir(parents=True)
                (model / "config.json").write_text("{}")
                (model / "model.safetensors").write_text("w")
            pair.envgen("up", "serve", "--yes")
            yield pair
            pair.envgen("down")


def image(pair: Pair, node: str, tag: str = "prod") -> str:
    """The image of a name on a machine; "" if there is none."""
    return pair.docker(node, "image", "ls", "-q", "--no-trunc", f"{NAME}:{tag}").strip()


def runs(pair: Pair) -> dict[str, str]:
    """The release on each machine, as its log says."""
    found = {}
    for node in MACHINES:
        container = pair.docker(node, "ps", "-q", "--filter", f"name={NAME}-prod-serve").strip()
        found[node] = pair.docker(node, "logs", container).splitlines()[0].split()[1] if container else ""
    return found


def load(pair: Pair) -> None:
    """As the hint says: the candidate is built here, and each machine needs it."""
    for node in MACHINES:
        argv = ["bash", "-c", f"docker save {CANDIDATE} | docker --context {node} load"]
        subprocess.run(argv, env=pair.env, check=True, capture_output=True)


def test_left_kept_and_back(pair: Pair) -> None:
    files = {path: (pair.folder / path).read_bytes() for path in ("envgen.yaml", "envgen.lock")}
    before = {node: image(pair, node) for node in MACHINES}
    assert runs(pair) == {"spark-1": "1.0", "spark-2": "1.0"}
    lacking = pair.envgen("upgrade", "toy==1.4", *KEEP, code=6)
    assert f"docker save {CANDIDATE} | docker --context spark-1 load" in lacking.stderr
    load(pair)
    left = pair.envgen("upgrade", "toy==1.4", *KEEP, code=1)
    assert "-50 %" in left.stdout + left.stderr
    assert runs(pair) == {"spark-1": "1.0", "spark-2": "1.0"}
    assert {node: image(pair, node) for node in MACHINES} == before

    pair.envgen("upgrade", "toy==1.1", *KEEP, code=6)
    load(pair)
    kept = json.loads(pair.envgen("upgrade", "toy==1.1", *KEEP).stdout)
    assert kept["kept"] and runs(pair) == {"spark-1": "1.1", "spark-2": "1.1"}
    assert {node: image(pair, node, "prod-before") for node in MACHINES} == before
    assert not any(image(pair, node, "prod-candidate") for node in MACHINES)

    pair.envgen("upgrade", "--back")
    assert runs(pair) == {"spark-1": "1.0", "spark-2": "1.0"}
    assert {node: image(pair, node) for node in MACHINES} == before
    assert {path: (pair.folder / path).read_bytes() for path in files} == files
