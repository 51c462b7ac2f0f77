"""The cores and the memory that compilers can have here. Who may start, compile-gate decides inside the container."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from envgen.engine.base import EngineInfo

GIB = 1 << 30


def compilers(wanted: int | None, engine: EngineInfo | None, *, root: Path = Path("/")) -> str:
    """One sentence on what compilers will do in a build or a JIT here. ``wanted``: at most so many, as given.

    What this machine and the engine's own allow: the smaller of both. compile-gate, in the image, decides.
    """
    cores: list[tuple[int, str]] = []
    memory: list[tuple[int, str]] = []
    if engine is None or engine.endpoint.startswith("unix://"):
        cores.append((len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, ""))
        with contextlib.suppress(OSError):
            available = mem_available((root / "proc/meminfo").read_text(encoding="utf-8"))
            memory += [] if available is None else [(available, "available")]
    if engine is not None:
        # A Docker Desktop's engine lives in a virtual machine that is smaller than this one.
        cores += [(engine.cpus, " of the engine's machine")] if engine.cpus > 0 else []
        memory += [(engine.memory, "in the engine's machine")] if engine.memory > 0 else []
    free, most = "", ""
    if memory:
        size, where = min(memory, key=lambda pair: pair[0])
        free = f" ({size / GIB:.1f} GiB {where} now)"
    if wanted is not None:
        most = f"; at most {wanted} at once, as given"
    elif cores:
        count, whose = min(cores, key=lambda pair: pair[0])
        most = f"; at most {count} at once, the cores{whose}"
    return f"compilers: each starts when the memory that it needs is free{free}{most}"


def mem_available(meminfo: str) -> int | None:
    """``MemAvailable`` of /proc/meminfo in bytes."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", meminfo, re.MULTILINE)
    return int(found[1]) << 10 if found else None
