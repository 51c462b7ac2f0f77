"""Runs inside the container: facts from the installed sources.

The flags of vLLM's parser and its defaults: from the files, since an import would load torch and take seconds.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import json
import os
import re
from typing import Iterator

from envgen.inside.common import PATCHES, read_bytes
from envgen.inside.probe.imports import Doc

FILE_LIMIT = 4 << 20
# The flags of vLLM: the engine's in one file, the server's in files that move below this folder.
ENGINE_ARGS, SERVER_ARGS = "engine/arg_utils.py", "entrypoints"
# Folders without code that reads settings: half of vLLM's bytes.
SKIPPED = ("__pycache__", "data", "tests", ".git", "models", "third_party", "benchmarks", "configs")


def active_folder(document: Doc, package: str) -> str | None:
    """The folder that most ways of starting Python import."""
    cells = [cell for cell in document.get("imports", []) if cell["package"] == package and cell["kind"] == "regular"]
    folders = [os.path.dirname(cell["origin"]) for cell in cells]
    return max(folders, key=folders.count) if folders else None


def python_files(folder: str) -> Iterator[str]:
    """The Python files below a folder, without links to folders and SKIPPED ones."""
    for top, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in SKIPPED]
        for name in names:
            if name.endswith(".py") and os.path.isfile(os.path.join(top, name)):
                yield os.path.join(top, name)


def tree_of(path: str, data: bytes) -> ast.Module | None:
    """The syntax tree; None for a file that this Python can't read."""
    try:
        return ast.parse(data, path)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: nested too deep
        return None


def near(name: str, known: set[str]) -> list[str]:
    """The most similar names of the release."""
    return difflib.get_close_matches(name, sorted(known), 2, 0.75)


# --- flags -----------------------------------------------------------------------------------------------------------


def flags_in(path: str, data: bytes) -> set[str]:
    """The flags of one file: quoted words like "--name", and the fields of classes called ...FrontendArgs."""
    found = {flag.decode() for flag in re.findall(rb"['\"](--[a-z][a-z0-9_-]*)['\"]", data)}
    tree = tree_of(path, data) if b"FrontendArgs:" in data or b"FrontendArgs(" in data else None
    for node in tree.body if tree is not None else ():
        if isinstance(node, ast.ClassDef) and node.name.endswith("FrontendArgs"):
            fields = [part.target for part in node.body if isinstance(part, ast.AnnAssign)]
            found.update("--" + one.id.replace("_", "-") for one in fields if isinstance(one, ast.Name))
    return found


def knows(flag: str, flags: set[str]) -> bool:
    """Whether vLLM's parser takes a flag: underscores for dashes, --no-NAME, --NAME.KEY, and any unique beginning.

    True for short flags (-q, -O3, -tp), which include their values.
    """
    if flag in flags or not flag.startswith("--"):
        return True
    name = flag.partition("=")[0].partition(".")[0].replace("_", "-")
    plain = "--" + name[len("--no-") :] if name.startswith("--no-") else name
    return name in flags or plain in flags or sum(one.startswith(name) for one in flags) == 1


def serve_flags(request: Doc, document: Doc) -> Doc:
    """The flags of the service's command, compared with the installed vLLM's."""
    asked = request.get("flags", [])
    folder = active_folder(document, "vllm") if asked else None
    return judged_flags(asked, folder) if folder is not None else {}


def judged_flags(asked: list[str], folder: str) -> Doc:
    """The flags that the vLLM in this folder does not know, and the files that were read."""
    flags, read, frontend = {"--help"}, [], False
    for path in [os.path.join(folder, ENGINE_ARGS), *sorted(python_files(os.path.join(folder, SERVER_ARGS)))]:
        data = read_bytes(path, FILE_LIMIT)
        if b"add_argument(" in data or b"FrontendArgs" in data:
            flags |= flags_in(path, data)
            read.append(os.path.relpath(path, folder))
            frontend = frontend or b"class FrontendArgs" in data
    if not frontend or ENGINE_ARGS not in read:  # an unknown layout: no result
        return {"folder": folder, "asked": len(asked)}
    unknown = [flag for flag in asked if not knows(flag, flags)]
    found = [{"flag": flag, "similar": near(flag, flags)} for flag in unknown]
    return {"folder": folder, "read": read, "count": len(flags), "asked": len(asked), "unknown": found}


# --- patches ---------------------------------------------------------------------------------------------------------


def claimed_patches(request: Doc, document: Doc) -> list[Doc]:
    """Whether each file that the image's patches changed is still as they left it, and the one that Python imports."""
    try:
        record = json.loads(read_bytes(request.get("patches", PATCHES), FILE_LIMIT).decode("utf-8", "replace"))
    except ValueError:  # none, for most images
        return []
    packages = {each["distribution"]: each["package"] for each in request.get("packages", [])}
    found = []
    for path, entry in sorted(record.items()):
        package = packages.get(entry["distribution"], entry["distribution"])
        folder, inside = active_folder(document, package), "/%s/" % package
        data = read_bytes(path, FILE_LIMIT) if os.path.isfile(path) else None
        state = (
            "there" if entry["sha256"] == (hashlib.sha256(data).hexdigest() if data is not None else "") else "changed"
        )
        state = "gone" if data is None and entry["sha256"] else state
        if folder and inside in path and not path.startswith(folder + "/"):
            state = "not imported"
        found += [
            {"patch": name[: -len(".patch")], "package": package, "path": path, "state": state}
            for name in entry["patches"]
        ]
    return found
