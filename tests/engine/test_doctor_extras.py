"""doctor --deep, --bundle and plug-ins: real containers, the real FlashInfer 0.5.3."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tarfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jit_lab import SITE, Lab
from planted import PLANTED
from projects import BASE, Project, docker

from envgen.engine.client import Engine

pytestmark = pytest.mark.engine

PROJECT = """\
version: 1
name: {name}
default_profile: dev
profiles:
  dev:
    mode: development
    image: "{name}:1"
    base: {{image: "{base}"}}
    cuda: {{arch_list: 12.1a}}
    gpu: none
    build: {{max_jobs: 2}}
    working_dir: /
    caches: {{models: {{path: /models, host: models}}}}
    sources:
      flashinfer: {{origin: {{checkout: nowhere/flashinfer}}, package: flashinfer,
                   distribution: flashinfer-python, mount: /w/flashinfer}}
    services: {{dev: {{command: [sleep, infinity]}}}}
"""


class Box:
    """A project with a container of the base image, labelled as Compose does."""

    def __init__(self, root: Path) -> None:
        self.project = Project(root, f"envgentestmore{uuid.uuid4().hex[:8]}")
        (root / "envgen.yaml").write_text(PROJECT.format(name=self.project.name, base=BASE))
        self.image, self.container = f"{self.project.name}:1", ""
        docker("tag", BASE, self.image)

    def start(self, *options: str) -> None:
        self.stop()
        label = "com.docker.compose"
        labels = ("--label", f"{label}.service=dev", "--label", f"{label}.project={self.project.name}-dev")
        plain = ("--init", "--network", "none", "--entrypoint", "")
        self.container = docker("run", "-d", *plain, *labels, *options, self.image, "sleep", "900")

    def stop(self) -> None:
        if self.container:
            docker("rm", "-f", self.container)

    def doctor(self, *words: str, env: dict[str, str] | None = None) -> Any:
        return self.project.envgen("doctor", *words, "--json", code=None, env=env).json

    def found(self, check: str, *words: str, env: dict[str, str] | None = None) -> list[dict[str, Any]]:
        return [one for one in self.doctor(*words, env=env)["findings"] if one["check"].startswith(check)]


@pytest.fixture
def box(engine: Engine, tmp_path: Path) -> Iterator[Box]:
    one = Box(tmp_path)
    try:
        yield one
    finally:
        one.stop()
        docker("image", "rm", one.image)


def test_deep_asks_the_real_flashinfer(jit_lab: Lab, engine: Engine) -> None:
    jit_lab.start("wheel")
    installed = ("--set", "sources.flashinfer.origin={wheel: flashinfer-python==0.5.3}")
    done = Project(jit_lab.folder, jit_lab.name).envgen("doctor", "--deep", "--json", *installed, code=None)
    found = {one["check"]: one for one in done.json["findings"]}
    assert found["import.truth"]["title"].startswith(f"flashinfer is {SITE}/__init__.py (imported in ")
    assert found["deep.kernel"]["severity"] == "info" and "finds no GPU" in found["deep.kernel"]["seen"]


def test_deep_reports_the_prediction(box: Box) -> None:
    """Here there is no vLLM to ask; what real ones answer stands in tests/process/test_predict.py."""
    box.start()
    serve = ("--set", "services.serve={command: [vllm, serve, tiny]}")
    (found,) = box.found("deep.predict", "--deep", *serve, "--set", "gpu=auto")
    assert found["evidence"]["case"] == "not-asked" and "No module named 'vllm'" in found["seen"]
    given = shlex.join([*serve, "--set", "gpu=auto"])
    assert found["remedy"]["text"] == f"envgen predict -p dev {given} serve"
    assert box.found("deep.predict", "--deep", *serve) == []  # gpu: none


def test_deep_without_a_container_says_what_to_start(box: Box) -> None:
    (found,) = box.found("deep", "--deep")
    assert found["evidence"]["case"] == "nothing-runs" and found["remedy"]["text"] == "envgen up -p dev dev"


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path, "r:gz") as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]


def test_a_bundle_has_all_and_no_secret(box: Box, tmp_path: Path) -> None:
    secrets = PLANTED
    everything = "\n".join(text for text, _ in secrets.values())
    box.start("-e", "HF_TOKEN=hf_InTheContainer0123456789", "-e", "PLAIN_SECRET_VALUE=only-words-here")
    docker("exec", "-i", box.container, "sh", "-c", "cat >/proc/1/fd/1", stdin=everything + "\nsaid only-words-here\n")
    root = box.project.root
    (root / "envgen.local.yaml").write_text(
        "# API_KEY: zzTopSecret99 (as a value: refused)\nprofiles: {dev: {env: {mine: {PLAIN: word}}}}\n"
    )
    logs = root / ".envgen" / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    (logs / "build-dev-1.log").write_text(everything)
    target = tmp_path / "b.tar.gz"
    done = box.project.envgen("doctor", "--bundle", str(target), code=None, env={"MY_TOKEN": "of-this-shell"})
    assert "wrote" in done.err
    found = members(target)
    for name in ("doctor.json", "versions.json", "project/envgen.yaml", "project/envgen.local.yaml",
                 "container.json", "server.log", "processes.txt", "logs/build-dev-1.log"):  # fmt: skip
        assert name in found, sorted(found)
    assert json.loads(found["versions.json"])["engine"]["version"]
    assert json.loads(found["doctor.json"])["findings"] and b"said" in found["server.log"]
    words = [secret for _, secret in secrets.values()]
    for word in [*words, "hf_InTheContainer", "only-words-here", "zzTopSecret99", "of-this-shell"]:
        holders = [name for name, content in found.items() if word.encode() in content]
        assert not holders, f"{word} in {holders}"
    assert not [name for name, content in found.items() if len(secret_lines(content)) > 0]


def secret_lines(content: bytes) -> list[bytes]:
    return [line for line in content.splitlines() if b"PRIVATE KEY-----" in line]


def test_without_an_engine_a_bundle_is_still_written(box: Box, tmp_path: Path) -> None:
    target = tmp_path / "b.tar.gz"
    box.project.envgen("doctor", "--bundle", str(target), code=1, env={"DOCKER_HOST": "unix:///nowhere.sock"})
    found = members(target)
    assert b"is not running" in found["no-engine.txt"] and b"no Docker Engine" in found["doctor.txt"]


def test_scripts_of_the_project_run_inside(box: Box, tmp_path: Path) -> None:
    """Those of checks/deep/ only with --deep; by hand, what else they print. The shipped one without a GPU: not run."""
    deep = tmp_path / "checks" / "deep"
    deep.mkdir(parents=True)
    (tmp_path / "checks/10-good.py").write_text(
        "import json, os\n"
        "one = {'severity': 'warning', 'title': 'seen inside', 'seen': os.path.realpath('/proc/1/exe'),\n"
        "       'expected': 'e', 'remedy': {'kind': 'command', 'text': 'true'}, 'evidence': {'n': 1}}\n"
        "print(json.dumps({'findings': [one]}))\n")  # fmt: skip
    (tmp_path / "checks/20-loud.sh").write_text("yes | head -c 30000000\n")
    script = deep / "10-kernel.py"
    script.write_text(
        "import json, sys\n"
        "print('compiling', file=sys.stderr, flush=True)\n"
        "rows = [{'kernel': 'moe', 'tokens': n, 'microseconds': [n, n + 1, n + 2]} for n in (1, 320)]\n"
        "print(json.dumps({'findings': [{'severity': 'ok', 'title': 'as torch'}], 'rows': rows}))\n")  # fmt: skip
    box.start()
    found = {one["check"]: one for one in box.found("checks/")}
    assert {*found} == {"checks/10-good.py", "checks/20-loud.sh"}
    assert found["checks/10-good.py"]["severity"] == "warning" and found["checks/10-good.py"]["evidence"] == {"n": 1}
    assert found["checks/20-loud.sh"]["evidence"]["case"] == "broken"
    assert [one["title"] for one in box.found("checks/deep", "--deep")] == ["as torch"]
    words = [sys.executable, "-m", "envgen", *box.project.words("exec", "dev", "python3", "-")]
    printed = subprocess.run(words, cwd=tmp_path, input=script.read_bytes(), capture_output=True, check=True)
    assert json.loads(printed.stdout)["rows"][1]["microseconds"] == [320, 321, 322] and b"compiling" in printed.stderr
    script.write_bytes((Path(__file__).parents[2] / "checks/deep/gpt_oss.py").read_bytes())
    (only,) = box.found("checks/deep", "--deep")
    assert only["severity"] == "info" and "not run" in only["title"]
