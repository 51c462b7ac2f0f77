"""Is there the memory that a service needs? On unified memory a server that finds too little dies after minutes."""

from __future__ import annotations

import re
from pathlib import Path

from envgen.engine.host import GIB, mem_available
from envgen.errors import Problem


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
        message = f"it needs {needed / GIB:.1f} GiB of memory, and {available / GIB:.1f} GiB can be had"
        hint = "stop something (`ps axo rss,pid,comm --sort=-rss | head` shows the largest), or lower needs_memory"
        return [Problem(message, hint=hint)], []
    found = re.search(r"^MemFree:\s+(\d+) kB$", meminfo, re.MULTILINE)
    if unified and found and (free := int(found[1]) << 10) < needed:
        return [], [
            f"of the {available / GIB:.1f} GiB that can be had, only {free / GIB:.1f} GiB are unused, "
            "the rest is page cache; a GPU "
            "that shares this memory may count that as taken: sync; echo 3 | sudo tee /proc/sys/vm/drop_caches"
        ]
    return [], []
