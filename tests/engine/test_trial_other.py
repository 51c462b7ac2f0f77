"""smoke and bench against a second real server: `transformers serve`, out of the image of the `cpu` profile.

It speaks the same API in another dialect: no list of models, no ignore_eos, no log probabilities.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterator

import pytest
from cpu_server import CpuServer
from projects import docker

pytestmark = pytest.mark.engine

NAME = "envgentesttransformers"


@pytest.fixture(scope="module")
def other(cpu_server: CpuServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ...]]:
    """The words that name the server. What it needs beside transformers is one package of plain Python."""
    folder = tmp_path_factory.mktemp("accelerate")
    wheels = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), "accelerate==1.15.0"]
    subprocess.run(wheels, check=True, timeout=120)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(folder / "more")
    docker("rm", "-f", NAME, check=False)
    docker(
        "create", "--name", NAME, "-p", "127.0.0.1::8000", "-v", f"{cpu_server.project.root}/models:/models:ro",
        "-e", "HF_HUB_OFFLINE=1", "-e", "PYTHONPATH=/more", "--tmpfs", "/root/.cache/huggingface/hub",
        "--entrypoint", "transformers", cpu_server.image, "serve", "--host", "0.0.0.0", "--port", "8000",
    )  # fmt: skip
    try:
        docker("cp", "-q", str(folder / "more"), f"{NAME}:/more")
        docker("start", NAME)
        address = docker("port", NAME, "8000").splitlines()[0]
        yield ("--url", f"http://{address}", "--container", NAME, "--model", "/models/tiny")
    finally:
        docker("rm", "-f", NAME, check=False)


def test_smoke_says_what_it_could_not_check(cpu_server: CpuServer, other: tuple[str, ...]) -> None:
    done = cpu_server.project.envgen("smoke", *other, "--wait", "120", "--json", code=None)
    found = {one["name"]: one for one in done.json["criteria"]}
    assert done.code == 0, done.err
    assert found.pop("NaN/Inf in log probabilities")["verdict"] == "not checked"
    assert {one["verdict"] for one in found.values()} == {"passed"} and len(found) == 4
    assert "does not take ignore_eos" in done.err


def test_bench(cpu_server: CpuServer, other: tuple[str, ...]) -> None:
    words = ("bench", *other, "--wait", "120", "--pp", "64", "--tg", "8", "-r", "2", "--warmup", "1", "--json")
    (cell,) = cpu_server.project.envgen(*words).json["cells"]
    assert cell["failed"] == 0 and cell["ttft_ms"]["n"] == 2
    assert cell["ttft_ms"]["mean"] < cell["latency_ms"]["mean"]
