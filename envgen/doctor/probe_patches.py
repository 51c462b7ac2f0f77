"""Runs INSIDE the container, before probe.py, in the same namespace: what patches changed, and whether it is still so.

The same rules: Python 3.8 and later, standard library only, evidence and no judgement.
"""

# os.path instead of pathlib, and typing only for the type checker: importing both would cost every probe 8 ms.

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict

    Doc = Dict[str, Any]

# One file a package, as `sha256sum --check` reads it; the build's script patch-installed writes it.
NOTES = "/opt/envgen/patched"


def patched_state(path: str, digest: str) -> str:
    if not os.path.isfile(path):
        return "missing"
    import hashlib

    with open(path, "rb") as file:
        return "same" if hashlib.sha256(file.read()).hexdigest() == digest else "changed"


def patched_files(_request: Doc, _document: Doc) -> list[Doc]:
    """Each file that a patch changed when the image was built: is it as the build left it?"""
    found = []
    for package in sorted(os.listdir(NOTES)) if os.path.isdir(NOTES) else []:
        with open(os.path.join(NOTES, package), "rb") as notes:
            lines = notes.read(1 << 20).decode("utf-8", "backslashreplace").splitlines()
        for line in lines:
            digest, _, path = line.partition("  ")
            found.append({"package": package, "path": path, "state": patched_state(path, digest)})
    return found


globals().setdefault("FACTS", []).append(("patched", patched_files))
