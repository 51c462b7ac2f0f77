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
    """What this machine and the engine's own machine allow: the smaller of both."""
    cores: list[tuple[int, str]] = []
    memory: list[tuple[int, str]] = []
    if engine is None or engine.endpoint.startswith("unix://"):
        cores.append((len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, ""))
        try:
            available = mem_available((root / "proc/meminfo").read_text(encoding="utf-8"))
        except OSError:
            available = None
        memory += [] if available is None else [(available, "available")]
    if engine is not None:
        # A Docker Desktop's engine lives in a virtual machine that is smaller than this one.
        cores += [(engine.cpus, "of the engine's machine")] if engine.cpus > 0 else []
        memory += [(engine.memory, "in the engine's machine")] if engine.memory > 0 else []
    least_cores = min(cores, key=lambda pair: pair[0], default=(0, ""))
    least_memory = min(memory, key=lambda pair: pair[0], default=(0, ""))
    return Capacity(least_cores[0], least_memory[0], least_cores[1], least_memory[1])


def mem_available(meminfo: str) -> int | None:
    """``MemAvailable`` of /proc/meminfo in bytes."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", meminfo, re.MULTILINE)
    return int(found[1]) << 10 if found else None
