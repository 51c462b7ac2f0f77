"""What is known of a failed service beside its log: how it ended, and whose memory ran out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from envgen import files
from envgen.engine import process
from envgen.engine.client import Engine
from envgen.engine.values import MISSHAPEN, Container
from envgen.errors import EngineError, EnvgenError, ProcessError
from envgen.explain import Circumstances
from envgen.lock.model import ProfileLock
from envgen.profile.model import Profile
from envgen.text import GIB

# Fact -> the package whose locked version it is.
LOCKED = {"cutlass_dsl": "nvidia-cutlass-dsl", "cudnn": "nvidia-cudnn-cu13", "torch": "torch"}
_LARGEST = 1 << 20  # bytes of a Compose file
# The kernel's summary of one OOM kill: whose limit it was (constraint, oom_memcg), and who was killed (task_memcg).
_KILL = re.compile(
    r"oom-kill:constraint=(?P<constraint>\w{1,40}),.{0,400}?(?:oom_memcg=(?P<limit>[^,\s]{1,400}),)?"
    r"(?:global_oom,)?task_memcg=(?P<task>[^,\s]{1,400})"
)


def circumstances(
    container: Container | None,
    *,
    kernel: str = "",
    machine: int = 0,
    profile: Profile | None = None,
    compose_files: Sequence[Path] = (),
    lock: ProfileLock | None = None,
) -> Circumstances:
    """From the engine's record of a container that has ended, or that runs and does not answer.

    ``kernel``: the kernel's messages, as far as they are known. ``machine``: its memory in bytes. ``profile``,
    ``compose_files`` and ``lock``: of the service; without them its settings and packages are unknown.
    """
    locked = {name: lock.version(package) for name, package in LOCKED.items()} if lock else {}
    facts, tags = {name: version for name, version in locked.items() if version}, frozenset({"server"})
    if profile is not None:
        tags |= {"mounted" if profile.mounted_sources else "installed"}
    if container is None:
        return Circumstances(failed=True, facts=facts, tags=tags)
    ended = not container.running
    if container.oom_killed:
        facts |= memory_facts(container, kernel, machine, compose_files)
    if cuda := container.env.get("CUDA_VERSION", ""):
        facts["cuda"] = cuda
    code = (container.own_code or None) if ended else None
    return Circumstances(ended, code, container.oom_killed, facts, tags)


def look(
    engine: Engine,
    container: Container | None,
    profile: Profile | None = None,
    compose_files: Sequence[Path] = (),
    lock: ProfileLock | None = None,
) -> Circumstances:
    """``circumstances``, with what the engine and this machine's kernel say. What they don't say is left out."""
    kernel, machine = "", 0
    if container is not None and container.oom_killed:
        try:
            info = engine.info()
            machine = info.memory
            kernel = kernel_messages() if info.local else ""
        except EngineError:
            pass
    return circumstances(
        container, kernel=kernel, machine=machine, profile=profile, compose_files=compose_files, lock=lock
    )


def kernel_messages() -> str:
    """The kernel's messages of this machine; "" where they can't be read."""
    try:
        done = process.run(["dmesg"], timeout=10, check=False)
    except (ProcessError, OSError):
        return ""
    return done.stdout.decode(errors="replace") if done.code == 0 else ""


def memory_facts(
    container: Container, kernel: str, machine: int, compose_files: Sequence[Path] = ()
) -> Mapping[str, str]:
    """Whose memory ran out, and who has set that limit: `memory`, and `setter` if it can be raised there."""
    kill = last_kill(kernel, container.id)
    if kill and kill.limit and container.id not in kill.limit:
        return {"memory": f"the cgroup {kill.limit}, which the container belongs to, was at its limit"}
    if container.memory and not (kill and not kill.limit):
        return {
            "memory": f"the container may use {gib(container.memory)}",
            "setter": setter_of(container.service, compose_files) or "the memory limit of the container",
        }
    whole = f"the machine's {gib(machine)} were in use" if machine else "the machine's memory was in use"
    if kill:
        return {"memory": whole}
    return {"memory": f"the container has no limit of its own, so {whole}, or a cgroup above it was at its limit"}


@dataclass(frozen=True)
class Kill:
    """One line of the kernel. ``limit``: the cgroup whose limit was reached; "": the machine's memory."""

    limit: str
    task: str


def last_kill(kernel: str, container_id: str) -> Kill | None:
    """The last process of a container that the kernel killed for its memory; None if it does not say."""
    found = [
        Kill(one["limit"] or "", one["task"])
        for one in _KILL.finditer(kernel)
        if container_id and container_id in one["task"]
    ]
    return found[-1] if found else None


def setter_of(service: str, compose_files: Sequence[Path]) -> str:
    """Where the memory limit of a service is written: the last file that sets it wins; "" for none."""
    for path in reversed(compose_files):
        try:
            document = yaml.safe_load(files.read(path, limit=_LARGEST))
            node = document["services"][service]
            key = "mem_limit" if "mem_limit" in node else _deep(node, "deploy", "resources", "limits", "memory")
        except (EnvgenError, OSError, yaml.YAMLError, RecursionError, *MISSHAPEN):
            continue
        if key:
            return f"{key} of {service} in {path.name}"
    return ""


def _deep(node: Any, *keys: str) -> str:
    for key in keys:
        node = node[key]
    return ".".join(keys) if node else ""


def gib(size: int) -> str:
    """Bytes as GiB with two digits."""
    return f"{size / GIB:.2f} GiB"
