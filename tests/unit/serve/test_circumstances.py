"""Whose memory ran out, and who has set that limit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from envgen.engine.values import Container, container_of
from envgen.explain import cause_of
from envgen.lock.model import Pinned, ProfileLock, PythonLock
from envgen.serve.ended import circumstances

IDENTITY = "3f" * 32


def killed(memory: int = 0) -> Container:
    state = {"Status": "exited", "ExitCode": 137, "OOMKilled": True}
    document = {"Id": IDENTITY, "Name": "/x", "State": state, "HostConfig": {"Memory": memory},
                "Config": {"Labels": {"com.docker.compose.service": "serve"}}}  # fmt: skip
    return container_of(document)


@pytest.mark.parametrize(
    ("memory", "said"),
    [(1 << 30, "the container may use 1.00 GiB"), (0, "the container has no limit of its own, so the machine's")],
)
def test_the_limit_that_was_hit_is_named(memory: int, said: str) -> None:
    cause = cause_of(["loading"], circumstances(killed(memory)), service=True)
    assert cause is not None and cause.rule == "server_memory"
    assert cause.cause.startswith(f"memory ran out: {said}")
    assert ("raise the memory limit of the container" in cause.cure) == bool(memory)
    assert "compil" not in cause.cause + cause.cure and "max_jobs" not in cause.cure


def test_a_container_that_runs_has_no_exit_code() -> None:
    running = replace(killed(), state="running", oom_killed=False, exit_code=0)
    assert circumstances(running).exit_code is None and not circumstances(running).failed
    assert circumstances(None).failed


def test_the_installed_version_is_the_locked_one() -> None:
    pins = (Pinned("nvidia-cutlass-dsl", "4.5.0", ()), Pinned("nvidia-cudnn-cu13", "9.19.0.56", ()))
    lock = ProfileLock(None, {}, {"linux/arm64": PythonLock("x", "3.12", {"all": pins})})
    about = circumstances(replace(killed(), oom_killed=False), lock=lock)
    lines = ["AttributeError: module 'cutlass.cute.arch' has no attribute 'fmin'"]
    cause = cause_of(lines, about, service=True)
    assert cause is not None and cause.cause.endswith("is missing in it (installed: 4.5.0)")
    cause = cause_of(["Kernel: cudnn_generated_fort_native_sm120_x"], about, service=True)
    assert cause is not None and "the installed cuDNN (9.19.0.56) reads" in cause.cause
