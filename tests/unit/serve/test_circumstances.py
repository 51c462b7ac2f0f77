"""Whose memory ran out, and who has set that limit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from envgen.engine.values import Container, container_of
from envgen.explain import cause_of
from envgen.lock.model import Pinned, ProfileLock, PythonLock
from envgen.serve.ended import circumstances, setter_of

IDENTITY = "3f" * 32
CGROUP = f"/system.slice/docker-{IDENTITY}.scope"
# Lines as the kernel writes them (mm/oom_kill.c, dump_oom_victim).
OWN = (f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,mems_allowed=0,oom_memcg={CGROUP},"
       f"task_memcg={CGROUP},task=python3,pid=77,uid=0")  # fmt: skip
SLICE = OWN.replace(f"oom_memcg={CGROUP}", "oom_memcg=/llm.slice")
WHOLE = (f"oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=x,mems_allowed=0,global_oom,"
         f"task_memcg={CGROUP},task=python3,pid=77,uid=0")  # fmt: skip
OTHER = OWN.replace(IDENTITY, "ab" * 32)


def killed(memory: int = 0) -> Container:
    state = {"Status": "exited", "ExitCode": 137, "OOMKilled": True}
    document = {"Id": IDENTITY, "Name": "/x", "State": state, "HostConfig": {"Memory": memory},
                "Config": {"Labels": {"com.docker.compose.service": "serve"}}}  # fmt: skip
    return container_of(document)


@pytest.mark.parametrize(
    ("memory", "kernel", "said"),
    [
        (1 << 30, OWN, "the container may use 1.00 GiB"),
        (1 << 30, "", "the container may use 1.00 GiB"),
        (1 << 30, OTHER, "the container may use 1.00 GiB"),
        (1 << 30, SLICE, "the cgroup /llm.slice, which the container belongs to, was at its limit"),
        (1 << 30, WHOLE, "the machine's 22.00 GiB were in use"),
        (0, WHOLE, "the machine's 22.00 GiB were in use"),
        (0, SLICE, "the cgroup /llm.slice, which the container belongs to, was at its limit"),
        (0, "", "the container has no limit of its own, so the machine's 22.00 GiB were in use, or a cgroup above it"),
    ],
)
def test_the_limit_that_was_hit_is_named(memory: int, kernel: str, said: str) -> None:
    about = circumstances(killed(memory), kernel=f"[1.5] {kernel}\n", machine=22 << 30)
    cause = cause_of(["loading"], about, service=True)
    assert cause is not None and cause.rule == "server_memory"
    assert cause.cause.startswith(f"memory ran out: {said}")
    assert ("raise " in cause.cure) == (said == "the container may use 1.00 GiB")
    assert "compil" not in cause.cause + cause.cure and "--max-jobs" not in cause.cure


def test_the_file_that_sets_the_limit_is_named(tmp_path: Path) -> None:
    rendered, own = tmp_path / "prod.yaml", tmp_path / "over.yaml"
    rendered.write_text("services: {serve: {image: x}}\n")
    assert setter_of("serve", [rendered, tmp_path / "none.yaml"]) == ""
    own.write_text("services: {serve: {mem_limit: 1g}}\n")
    assert setter_of("serve", [rendered, own]) == "mem_limit of serve in over.yaml"
    own.write_text("services: {serve: {deploy: {resources: {limits: {memory: 1g}}}}}\n")
    assert setter_of("serve", [rendered, own]) == "deploy.resources.limits.memory of serve in over.yaml"
    own.write_text("services: [not, what, is, expected]\n")
    assert setter_of("serve", [rendered, own]) == ""
    about = circumstances(killed(1 << 30), compose_files=[rendered, own])
    cause = cause_of([], about, service=True)
    assert cause is not None and cause.cure.startswith("raise the memory limit of the container")


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
