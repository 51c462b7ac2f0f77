"""Runs inside a container: the files that a profiler wrote, and their bytes piece by piece."""

from __future__ import annotations

import base64
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict

    Doc = Dict[str, Any]

PIECE = 2 << 20  # bytes in one answer


def answer(request: Doc) -> Doc:
    """``files`` of the folder, as name -> size and time; with ``name`` the piece of that file from ``offset`` on."""
    folder = str(request["folder"])
    if "name" in request:
        with open(os.path.join(folder, str(request["name"])), "rb") as file:
            file.seek(int(request["offset"]))
            return {"piece": base64.b64encode(file.read(PIECE)).decode()}
    found = {}
    for entry in os.scandir(folder) if os.path.isdir(folder) else ():
        if entry.is_file(follow_symlinks=False):
            status = entry.stat(follow_symlinks=False)
            found[entry.name] = [status.st_size, status.st_mtime_ns]
    return {"files": found}
