"""Runs INSIDE the container, before probe.py, in the same namespace: what the installed sources themselves say.

Which VLLM_* and FLASHINFER_* variables they read, which of them they set over the user's head, and which flags vLLM's
parser knows: read from the package's own files, never imported (that would bring torch, and seconds). The same rules:
Python 3.8 and later, standard library only, evidence and no judgement.
"""

# os.path instead of pathlib, and typing only for the type checker: importing both would cost every probe 8 ms.

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Dict

    Doc = Dict[str, Any]

ONLY_AST = 0x400  # what ast.parse passes to compile(); importing ast would cost 5 ms
FILE_LIMIT = 4 << 20
# Where vLLM's releases say their flags, relative to the package.
PARSERS = ("engine/arg_utils.py", "entrypoints/openai/cli_args.py", "entrypoints/cli/serve.py", "entrypoints/utils.py")
HINTS = ("deprecated", "renamed", "removed", "no longer", "instead")


def active_folder(document: Doc, package: str) -> str | None:
    """The folder that most ways of starting Python import."""
    cells = [cell for cell in document.get("imports", []) if cell["package"] == package and cell["kind"] == "regular"]
    folders = [os.path.dirname(cell["origin"]) for cell in cells]
    return max(folders, key=folders.count) if folders else None


def python_files(folder: str) -> Iterator[str]:
    """All Python files below a folder; links to folders are not followed, data folders not looked at."""
    waiting = [folder]
    while waiting:
        try:
            entries = list(os.scandir(waiting.pop()))
        except OSError:
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in ("__pycache__", "data", "tests", ".git"):
                    waiting.append(entry.path)
            elif entry.name.endswith(".py"):
                yield entry.path


def read_bytes(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(FILE_LIMIT)
    except OSError:
        return b""


def tree_of(path: str, data: bytes) -> Any:
    """The syntax tree; None for a file that this Python can't read."""
    try:
        return compile(data, path, "exec", ONLY_AST, True)
    except (SyntaxError, ValueError):
        return None


def nodes(tree: Any) -> Iterator[Any]:
    """Every node of a tree, without the ast module."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for field in node._fields:
            value = getattr(node, field, None)
            if isinstance(value, list):
                waiting.extend(item for item in value if hasattr(item, "_fields"))
            elif hasattr(value, "_fields"):
                waiting.append(value)


def kind(node: Any) -> str:
    return type(node).__name__


def text_of(node: Any) -> str | None:
    """The value of a string in the source (``Str`` up to Python 3.7)."""
    value = getattr(node, "value", None) if kind(node) == "Constant" else None
    return value if isinstance(value, str) else None


def names_environ(node: Any) -> bool:
    """`os.environ` or `environ`."""
    return getattr(node, "attr", getattr(node, "id", "")) == "environ"


def assigned(tree: Any) -> Iterator[tuple[str, int]]:
    """(name, line) of each `os.environ["NAME"] = ...`: done whatever the user has set."""
    for node in nodes(tree):
        if kind(node) != "Assign":
            continue
        for target in node.targets:
            if kind(target) == "Subscript" and names_environ(target.value):
                index = getattr(target.slice, "value", None) if kind(target.slice) == "Index" else target.slice
                name = text_of(index)
                if name:
                    yield name, node.lineno


def look(path: str, data: bytes, facts: dict[str, Doc], relative: str) -> None:
    """What one file says about the variables in question."""
    tree = tree_of(path, data)
    if tree is None:
        return
    for name, line in assigned(tree):
        if name in facts:
            facts[name]["assigned"].append("%s:%d" % (relative, line))
    for node in nodes(tree):
        text = text_of(node)
        if text in facts:
            facts[text]["known"] = True
        elif getattr(node, "attr", None) in facts:  # envs.NAME
            facts[node.attr]["known"] = True
        elif text and len(text) < 400 and any(hint in text.lower() for hint in HINTS):
            for name in facts:
                if name in text and not facts[name]["note"]:
                    facts[name]["note"] = " ".join(text.split())[:200]


def near(name: str, known: set[str]) -> list[str]:
    """The names that the release knows and that look most alike."""
    import difflib

    return difflib.get_close_matches(name, sorted(known), 2, 0.75)


def package_variables(package: Doc, folder: str) -> list[Doc]:
    """Facts about each set variable that has the package's prefix."""
    import re

    prefix = package["package"].upper() + "_"
    facts: dict[str, Doc] = {name: {"name": name, "package": package["package"], "known": False, "assigned": [],
                                    "note": "", "similar": []}
                             for name in sorted(os.environ) if name.startswith(prefix)}  # fmt: skip
    if not facts:
        return []
    wanted, pattern = [name.encode() for name in facts], re.compile(prefix.encode() + rb"[A-Z0-9_]+[A-Z0-9]")
    known: set[str] = set()
    for path in python_files(folder):
        data = read_bytes(path)
        if prefix.encode() not in data:
            continue
        known.update(found.decode() for found in pattern.findall(data))
        if any(name in data for name in wanted):
            look(path, data, facts, os.path.relpath(path, folder))
    for fact in facts.values():
        fact["assigned"] = sorted(fact["assigned"])[:5]
        if not fact["known"]:
            fact["similar"] = near(fact["name"], known - set(facts))
    return list(facts.values())


def known_variables(request: Doc, document: Doc) -> list[Doc]:
    """Each variable with a source's prefix: does the installed release read it, set it itself, call it by-gone?"""
    found = []
    for package in request.get("packages", []):
        folder = active_folder(document, package["package"])
        if folder is not None:
            found += package_variables(package, folder)
    return found


# --- flags -----------------------------------------------------------------------------------------------------------


def flags_in(tree: Any) -> set[str]:
    """The flags of one file: texts like --name, and the fields of classes called ...FrontendArgs."""
    found = set()
    for node in nodes(tree):
        text = text_of(node)
        if text and text.startswith("-") and len(text) > 1 and " " not in text and text.strip("-"):
            found.add(text)
        if kind(node) == "ClassDef" and node.name.endswith("FrontendArgs"):
            fields = [part.target.id for part in node.body if kind(part) == "AnnAssign" and kind(part.target) == "Name"]
            found.update("--" + field.replace("_", "-") for field in fields)
    return found


def knows(flag: str, flags: set[str]) -> bool:
    """As vLLM's own parser takes them: underscores for dashes, --no-NAME, --NAME.KEY, and any unique beginning."""
    if flag in flags:
        return True
    if not flag.startswith("--"):
        return flag[:2] in flags
    name = flag.partition("=")[0].partition(".")[0].replace("_", "-")
    plain = "--" + name[len("--no-") :] if name.startswith("--no-") else name
    return name in flags or plain in flags or sum(one.startswith(name) for one in flags) == 1


def serve_flags(request: Doc, document: Doc) -> Doc:
    """The flags of the service's command against those that the installed vLLM's sources name."""
    asked = request.get("flags", [])
    folder = active_folder(document, "vllm") if asked else None
    if folder is None:
        return {}
    flags: set[str] = {"--help", "-h"}
    read = []
    for name in PARSERS:
        path = os.path.join(folder, name)
        tree = tree_of(path, read_bytes(path)) if os.path.isfile(path) else None
        if tree is not None:
            flags |= flags_in(tree)
            read.append(name)
    unknown = [flag for flag in asked if not knows(flag, flags)]
    found = [{"flag": flag, "similar": near(flag, {one for one in flags if one.startswith("--")})} for flag in unknown]
    return {"folder": folder, "read": read, "count": len(flags), "asked": len(asked), "unknown": found}


# --- patches ---------------------------------------------------------------------------------------------------------


def claimed_patches(request: Doc, document: Doc) -> list[Doc]:
    """Each block of lines that a claimed patch adds: is it in the file that would be imported?"""
    found = []
    for claim in request.get("claims", []):
        folder = active_folder(document, claim["package"])
        if folder is None:
            continue
        path = os.path.join(os.path.dirname(folder), claim["file"])
        state = "no-file"
        if os.path.isfile(path):
            text = read_bytes(path).decode("utf-8", "replace").replace("\r\n", "\n")
            state = "there" if all(block in text for block in claim["blocks"]) else "missing"
        found.append({"patch": claim["patch"], "package": claim["package"], "path": path, "state": state})
    return found


globals().setdefault("FACTS", []).extend(
    [("known", known_variables), ("flags", serve_flags), ("claimed", claimed_patches)]
)
