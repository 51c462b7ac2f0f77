"""Runs inside the container: facts from the installed sources.

The VLLM_* and FLASHINFER_* variables that they read or set themselves, and the flags of vLLM's parser: from the files,
since an import would load torch and take seconds.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import json
import os
import re
from typing import Any, Iterator

from envgen.inside.common import read_bytes
from envgen.inside.probe.imports import Doc

FILE_LIMIT = 4 << 20
# The flags of vLLM: the engine's in one file, the server's in files that move below this folder.
ENGINE_ARGS, SERVER_ARGS = "engine/arg_utils.py", "entrypoints"
CACHE_CONFIG = "config/cache.py"
# Folders without code that reads settings: half of vLLM's bytes.
SKIPPED = ("__pycache__", "data", "tests", ".git", "models", "third_party", "benchmarks", "configs")
MISSPELT = 0.93  # similarity of one or two typing errors; below it is another setting
HINTS = ("deprecated", "renamed", "removed", "no longer", "ignored", "instead of")
BYTE_HINTS = tuple(hint.encode() for hint in HINTS)


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


def assigned(node: ast.Assign) -> Iterator[str]:
    """The names in `os.environ["NAME"] = ...`, which overwrites the user's value."""
    for target in node.targets:
        if isinstance(target, ast.Subscript):
            index: Any = target.slice
            index = getattr(index, "value", index)  # a string; up to Python 3.8 the node of one
            name = getattr(index, "value", index)
            # `os.environ` or `environ`
            if isinstance(name, str) and getattr(target.value, "attr", getattr(target.value, "id", "")) == "environ":
                yield name


def read_file(path: str, data: bytes, facts: dict[str, Doc], relative: str) -> None:
    """Add what one file has about the variables to ``facts``."""
    tree = tree_of(path, data)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Constant):
            text = node.value if isinstance(node.value, str) else ""
            if text in facts:
                facts[text]["known"] = True
            elif text and len(text) < 400 and any(hint in text.lower() for hint in HINTS):
                for name in facts:
                    if disowns(text, name) and not facts[name]["note"]:
                        facts[name]["note"] = " ".join(text.split())[:200]
        elif isinstance(node, ast.Attribute) and node.attr in facts:  # envs.NAME
            facts[node.attr]["known"] = True
        elif isinstance(node, ast.Assign):
            for name in assigned(node):
                if name in facts:
                    facts[name]["assigned"].append("%s:%d" % (relative, node.lineno))


def disowns(text: str, name: str) -> bool:
    """Whether a message announces the removal of ``name`` itself, not of another that it replaces.

    Yes: `NAME is deprecated, use OTHER`, `use OTHER instead of NAME`. No: `... instead (set NAME=1)`.
    """
    low, wanted = " ".join(text.lower().split()), re.escape(name.lower()) + r"\b"
    for sentence in re.split(r"(?<=[.;!])\s+", low):
        if re.search("instead of [`'\"$]?" + wanted, sentence):
            return True
        for found in re.finditer(wanted, sentence):
            before, after = sentence[: found.start()], sentence[found.end() :]
            if re.search(r"(?:use|set|setting|prefer|with|by|export|in favou?r of|replaced by)[ `'\"(]*$", before):
                continue
            if re.match(r"[`'\"]?(?:[ =].{0,60}?)?\b(?:deprecated|renamed|removed|no longer|ignored)\b", after):
                return True
            if re.search(r"\b(?:deprecated|removed|renamed|ignored)\b[^,]{0,40}$", before):
                return True
    return False


def near(name: str, known: set[str], alike: float = 0.75) -> list[str]:
    """The most similar names of the release."""
    return difflib.get_close_matches(name, sorted(known), 2, alike)


def is_candidate(data: bytes, pattern: Any) -> bool:
    """Whether a line of this file may set one of the variables, or call one deprecated."""
    for found in pattern.finditer(data):
        begin = data.rfind(b"\n", 0, found.start()) + 1
        end = data.find(b"\n", found.end())
        before, after = data[begin : found.start()], data[found.end() : end if end > 0 else len(data)]
        if b"environ[" in before and b"=" in after:
            return True
        line = (before + after).lower()
        if any(hint in line for hint in BYTE_HINTS):
            return True
    return False


def package_variables(package: str, folder: str, names: list[str]) -> list[Doc]:
    """Facts about each of these variables, which have the package's prefix.

    A release may list its variables in one file (vLLM's envs.py); of other files only those that may set one or call it
    deprecated are parsed. A variable that is not listed is searched in all files.
    """
    prefix = package.upper() + "_"
    facts: dict[str, Doc] = {name: {"name": name, "package": package, "known": False, "assigned": [], "note": "",
                                    "similar": []} for name in names}  # fmt: skip
    central = os.path.join(folder, "envs.py")
    listed = read_bytes(central)
    for found in re.findall(rb"^\s+['\"]([A-Z0-9_]+)['\"]\s*:", listed, re.MULTILINE):  # the keys of its table
        if found.decode() in facts:
            facts[found.decode()]["known"] = True
    unknown = [name.encode() for name in facts if not facts[name]["known"]]
    pattern = re.compile(prefix.encode() + rb"[A-Z0-9_]+[A-Z0-9]")
    mine = re.compile(("(?:" + "|".join(facts) + r")\b").encode())
    known = {found.decode() for found in pattern.findall(listed)}
    for path in python_files(folder):
        data = read_bytes(path, FILE_LIMIT)
        if prefix.encode() not in data:
            continue
        if unknown and not listed:
            known.update(found.decode() for found in pattern.findall(data))
        if any(name in data for name in unknown) or is_candidate(data, mine):
            read_file(path, data, facts, os.path.relpath(path, folder))
    for fact in facts.values():
        fact["assigned"] = sorted(fact["assigned"])[:5]
        if not fact["known"]:
            fact["similar"] = near(fact["name"], known - set(facts), MISSPELT)
    return list(facts.values())


def known_variables(request: Doc, document: Doc) -> list[Doc]:
    """For each variable with a source's prefix: whether the release reads it, sets it itself, calls it deprecated."""
    found = []
    for package in request.get("packages", []):
        folder, prefix = active_folder(document, package["package"]), package["package"].upper() + "_"
        names = sorted(name for name in os.environ if name.startswith(prefix))
        if folder is not None and names:
            found += package_variables(package["package"], folder, names)
    return found


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


def server_defaults(request: Doc, document: Doc) -> Doc:
    """The installed vLLM's defaults; empty for another layout of its sources."""
    folder = active_folder(document, "vllm")
    text = read_bytes(os.path.join(folder, CACHE_CONFIG)) if folder is not None else b""
    found = re.search(
        rb"^\s+gpu_memory_utilization\s*:\s*float\s*=\s*(?:Field\(\s*default\s*=\s*)?([0-9.]+)", text, re.M
    )
    return {"gpu_memory_utilization": float(found.group(1))} if found else {}


# --- patches ---------------------------------------------------------------------------------------------------------


PATCHES = "/opt/envgen/patches.json"  # by apply-patches, while the image was built


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
