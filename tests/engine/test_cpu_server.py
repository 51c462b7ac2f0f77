"""The shared real server: it is a vLLM, and it completes prompts the same way each time."""

from __future__ import annotations

import json
import urllib.request

import pytest
from cpu_server import CpuServer
from projects import docker

pytestmark = pytest.mark.engine


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
