"""Models that complete no prompt, on the real vLLM for CPUs: an embedding model and a reranker with random weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cpu_server import CpuServer, free_port
from projects import Project, docker

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

PROMPT, EXPECTS = "The capital of France is", "services.embed.ready.expect_text=Paris"
DONE = {"embed": f"embedded '{PROMPT}': 64 numbers", "rank": f"ranked '{PROMPT}': 1 number"}


def service(name: str) -> dict[str, Any]:
    """As a user writes it."""
    args = {"model": f"/models/{name}", "served-model-name": name, "runner": "pooling", "host": "0.0.0.0", "port": 8000,
            "dtype": "bfloat16", "max-model-len": 512, "enforce-eager": True}  # fmt: skip
    return {
        "command": ["python3", "-m", "vllm.entrypoints.openai.api_server"],
        "args": {**args, "kv-cache-memory-bytes": 64 << 20},
        "ports": [f"127.0.0.1:{free_port()}:8000"],
        "health": {"http": "/health", "interval": "60s", "start_period": "900s"},
        "ready": {"model": name, "port": 8000, "timeout": "900s"},
    }


@pytest.fixture(scope="module")
def project(cpu_server: CpuServer) -> Iterator[Project]:
    """The project of the CPU server, with both services."""
    code = Path(__file__).with_name("data").joinpath("tiny_pooling.py").read_text(encoding="utf-8")
    models = cpu_server.project.root / "models"
    docker("run", "--rm", "-i", "--entrypoint", "python3", "-v", f"{models}:/models", cpu_server.image, "-", stdin=code)
    cpu_server.write_local({name: service(name) for name in DONE})
    yield cpu_server.project
    for name in DONE:
        cpu_server.project.envgen("stop", name, "-p", "cpu", code=None)
        docker("rm", "-f", f"quickstart-cpu-{name}-1", check=False)
    cpu_server.write_local()


@pytest.mark.parametrize("name", DONE)
def test_it_is_asked_for_its_task(project: Project, name: str) -> None:
    up = project.envgen("up", name, "-p", "cpu")
    assert f"{name} is ready" in up.out and DONE[name] in up.out
    (smoke,) = project.envgen("smoke", name, "-p", "cpu", "--json").json["criteria"]
    assert (smoke["verdict"], smoke["seen"]) == ("passed", DONE[name])
    project.envgen("doctor", name, "-p", "cpu")
    (shown,) = [line for line in project.envgen("status", "-p", "cpu").out.splitlines() if line.startswith(f"{name} ")]
    assert shown.split()[1:3] == ["running", "healthy"]
    for command in ("answers", "bench"):  # they send prompts
        assert f"hint: `envgen smoke {name}`" in project.envgen(command, name, "-p", "cpu", code=2).err


def test_a_text_to_expect_is_told_not_to_be_asked(project: Project) -> None:
    again = project.envgen("up", "embed", "-p", "cpu", "--set", EXPECTS, "--json").json
    assert again["already_running"] and again["asked"]
    assert again["pooled"] == f"{DONE['embed']}; ready.expect_text is not asked of such a model"


def test_an_embedding_that_is_nan_is_not_ready(project: Project) -> None:
    """vLLM answers it with 400: JSON has no NaN."""
    words = ("up", "embed", "-p", "cpu", "--recreate", "--set", "services.embed.args.model=/models/spoiled")
    why = "the first request to /v1/embeddings was answered with 400: Out of range float values"
    assert f"embed is not ready: {why}" in project.envgen(*words, code=5).err
