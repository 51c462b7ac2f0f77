"""The cores and the memory that compilers can have here. Who may start, compile-gate decides inside the container."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from envgen.engine.base import EngineInfo

GIB = 1 << 30


@dataclass(frozen=True)
class Capacity:
    """Cores and memory that builds can use. ``0`` = not known. The notes say what set each limit."""

    cores: int
    memory: int
    cores_from: str = ""
    memory_from: str = ""


def sentence(wanted: int | None, found: Capacity) -> str:
    """What compilers will do in a build or a JIT here. compile-gate, in the image, decides; this only describes it."""
    free = f" ({found.memory / GIB:.1f} GiB {found.memory_from or 'available'} now)" if found.memory else ""
    if wanted is not None:
        most = f"; at most {wanted} at once, as given"
    elif found.cores:
        most = f"; at most {found.cores} at once, the cores{found.cores_from and f' {found.cores_from}'}"
    else:
        most = ""
    return f"compilers: each starts when the memory that it needs is free{free}{most}"


def capacity(engine: EngineInfo | None, *, root: Path = Path("/")) -> Capacity:
    """What this machine, the container that we may be in, and the engine's own machine allow: the smallest of them."""
    cores: list[tuple[int, str]] = []
    memory: list[tuple[int, str]] = []
    if engine is None or engine.endpoint.startswith("unix://"):
        cores.append((_own_cores(), ""))
        cores += _cgroup_cores(root)
        memory += _available(root)
        memory += _cgroup_memory(root)
    if engine is not None:
        # A Docker Desktop's engine lives in a virtual machine that is smaller than this one.
        if engine.cpus > 0:
            cores.append((engine.cpus, "of the engine's machine"))
        if engine.memory > 0:
            memory.append((engine.memory, "in the engine's machine"))
    least_cores = min(cores, key=lambda pair: pair[0], default=(0, ""))
    least_memory = min(memory, key=lambda pair: pair[0], default=(0, ""))
    return Capacity(least_cores[0], least_memory[0], least_cores[1], least_memory[1])


def mem_available(meminfo: str) -> int | None:
    """``MemAvailable`` of /proc/meminfo in bytes; kernels before 3.14 lack it, then free + cached."""
    fields = {name: int(size) << 10 for name, size in re.findall(r"^(\w+):\s+(\d+) kB$", meminfo, re.MULTILINE)}
    if "MemAvailable" in fields:
        return fields["MemAvailable"]
    return fields["MemFree"] + fields.get("Cached", 0) if "MemFree" in fields else None


def _own_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _available(root: Path) -> list[tuple[int, str]]:
    found = mem_available(_read(root / "proc/meminfo"))
    return [] if found is None else [(found, "available")]


def _cgroup_folders(root: Path, controller: str) -> list[Path]:
    """The folders of our own cgroup and of those above it, in version 2 or 1, nearest first."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            top = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            top = root / "sys/fs/cgroup" / controller
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", ".", "..")]
        folders = [top.joinpath(*parts[:n]) for n in range(len(parts), -1, -1)]
        # In a container's own cgroup namespace the path of the host does not exist: the top is what we are in.
        if (top / "cgroup.controllers").exists() or top.name == controller:
            return folders
    return []


def _cgroup_memory(root: Path) -> list[tuple[int, str]]:
    found = []
    for folder in _cgroup_folders(root, "memory"):
        for limit_file, usage_file, cached in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, used = _number(folder / limit_file), _number(folder / usage_file)
            # Version 1 writes "no limit" as a number near 2**63.
            if limit is None or used is None or limit >= 1 << 60:
                continue
            cache = re.search(rf"^{cached} (\d+)$", _read(folder / "memory.stat"), re.MULTILINE)
            free = limit - used + (int(cache[1]) if cache else 0)
            found.append((max(0, min(free, limit)), "free below this container's limit"))
    return found


def _cgroup_cores(root: Path) -> list[tuple[int, str]]:
    found = []
    for folder in _cgroup_folders(root, "cpu"):
        quota: int | None
        words = _read(folder / "cpu.max").split()
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit():
            quota, period = int(words[0]), int(words[1])
        else:
            quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us") or 0
        if quota and quota > 0 and period > 0:
            found.append((max(1, quota // period), "by this container's limit"))
    return found


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if re.fullmatch(r"-?\d+", text) else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
