"""Runs inside the container: imports a package."""

from __future__ import annotations

import importlib
import sys
import time

from envgen.inside.common import Doc, number_in


def import_of(package: str) -> Doc:
    module = importlib.import_module(package)
    return {
        "version": str(getattr(module, "__version__", "")),
        "file": getattr(module, "__file__", None) or "",
    }


def short_of(least: int) -> str:
    """What is said where less memory is available: a server beside it may need the rest."""
    free = number_in("/proc/meminfo", "MemAvailable:") << 10
    if not free or free >= least:
        return ""
    return f"{free / 2**30:.1f} GiB of memory are available"


def answer(request: Doc) -> Doc:
    """Imports the ``package``. An import that hangs, exits or crashes is the answer, too."""
    if sys.path and sys.path[0] == "":
        del sys.path[0]  # as for a console script: without the current folder
    short = short_of(request.get("least", 0))
    if short:
        return {"skipped": short}
    began = time.monotonic()
    result = import_of(request["package"])
    return {"answer": result, "seconds": round(time.monotonic() - began, 2)}
