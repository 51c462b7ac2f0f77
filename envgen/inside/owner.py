"""Runs inside a service's container: who owns a Python module, and whether its file has a name."""

from __future__ import annotations

import importlib.util
from importlib import metadata

from envgen.inside.common import Doc

LARGEST = 4 << 20  # bytes of a file that are read


def answer(request: Doc) -> Doc:
    """``module``, ``name`` ("": none is asked for). Answers with ``owners``: the distributions with their
    versions, ``file`` ("": there is none) and ``has`` (None: not known).

    Only the packages above a module are imported to find it, not the module.
    """
    module = request["module"]
    name = request["name"].encode()
    inner = f"{module.partition('.')[0]}/"
    owners = [
        f"{found.metadata['Name']} {found.version}"
        for found in metadata.distributions()
        if any(str(path).startswith(inner) for path in found.files or ())
    ]
    try:
        spec = importlib.util.find_spec(module)
    except Exception:  # a package above it, which is anybody's, can't be imported
        spec = None
    file = (spec and spec.origin) or ""
    if not name or not file.endswith(".py"):
        return {"owners": sorted(owners), "file": file, "has": None}
    with open(file, "rb") as source:
        return {"owners": sorted(owners), "file": file, "has": name in source.read(LARGEST)}
