"""Is there the memory that a service needs? On unified memory a server that finds too little dies after minutes."""

from __future__ import annotations

import re
from pathlib import Path

from envgen.engine.jobs import GIB, mem_available
from envgen.errors import Problem

_LARGEST = 3


def check(needed: int, *, unified: bool, root: Path = Path("/")) -> tuple[list[Problem], list[str]]:
    """Problems when fewer than ``needed`` bytes can be had on this machine; else notes on what may still go wrong.

    ``unified``: a GPU is used. Where it shares this memory, CUDA counts the page cache as taken.
    """
    try:
        meminfo = (root / "proc/meminfo").read_text(encoding="utf-8")
    except OSError:
        return [], ["free memory is unknown: /proc/meminfo is not there"]
    available = mem_available(meminfo)
    if available is None:
        return [], ["free memory is unknown: /proc/meminfo does not have it"]
    if available < needed:
        users = ", ".join(f"{name} ({pid}) {size / GIB:.1f} GiB" for size, pid, name in largest(root))
        message = f"it needs {needed / GIB:.1f} GiB of memory, and {available / GIB:.1f} GiB can be had"
        hint = "stop something" + (f"; the largest are {users}" if users else "") + "; or lower needs_memory"
        return [Problem(message, hint=hint)], []
    free = _field(meminfo, "MemFree")
    if unified and free is not None and free < needed:
        return [], [
            f"of the {available / GIB:.1f} GiB that can be had, only {free / GIB:.1f} GiB are unused, "
            "the rest is page cache; a GPU "
            "that shares this memory may count that as taken: sync; echo 3 | sudo tee /proc/sys/vm/drop_caches"
        ]
    return [], []


def largest(root: Path = Path("/"), count: int = _LARGEST) -> list[tuple[int, int, str]]:
    """The processes with the most resident memory: bytes, number, name."""
    found = []
    for folder in (root / "proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            status = (folder / "status").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue  # it has ended by now, or is not ours to look at
        size, name = _field(status, "VmRSS"), re.search(r"^Name:\s+(.*)$", status, re.MULTILINE)
        if size and name:
            found.append((size, int(folder.name), name[1]))
    return sorted(found, reverse=True)[:count]


def _field(text: str, name: str) -> int | None:
    found = re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
    return int(found[1]) << 10 if found else None
