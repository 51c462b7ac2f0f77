"""Reading envgen.lock: every problem at once, each with its place."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envgen.errors import Place, Problem, ProjectError
from envgen.lock.file import FILE_NAME
from envgen.lock.model import (
    FORMAT,
    AptLock,
    GitLock,
    ImageLock,
    Lock,
    PatchLock,
    Pinned,
    PythonLock,
    Submodule,
    git_key,
)
from envgen.profile import yamlparse
from envgen.profile.tree import Node


@dataclass(frozen=True)
class _Text:
    """A scalar: its pattern, and what that is."""

    what: str
    pattern: str = r"(?s).*"


_SHA, _COMMIT = r"[0-9a-f]{64}", r"(?:[0-9a-f]{40}|[0-9a-f]{64})"
_ANY = "*"  # any key
_DIGEST = _Text("sha256: and 64 digits", rf"sha256:{_SHA}")
_IMAGE = {
    "digest": _DIGEST,
    "platforms": {_ANY: _DIGEST},
    "resolved": _Text("how", "registry|local"),
    "created": _Text("seconds", "[0-9]{1,12}"),
}
_GIT = {
    "commit": _Text("a commit of 40 hexadecimal digits", _COMMIT),
    "kind": _Text("a kind", "tag|branch|commit|pull"),
    "submodules": {_ANY: _Text("a commit and an address", rf"{_COMMIT} .*")},
    "resolved": _Text("how", "git"),
}
_PIN = _Text("a package, its version and the sha256 of its files", rf"[^ ]*==[^ ]*( {_SHA})+")
_PYTHON = {
    "asks": _Text("a digest"),
    "python": _Text("a version"),
    "sets": {_ANY: [_PIN]},
    "open": {_ANY: _Text("a reason")},
}
_APT = {"asks": _Text("a digest"), "build": [_Text("text")], "runtime": [_Text("text")]}
# What stands where: a record by its keys, a mapping by _ANY (which may be missing), a list by its one item.
_FILE = {
    "format": _Text("a number"),
    "images": {_ANY: _IMAGE},
    "git": {_ANY: _GIT},
    "files": {_ANY: _Text("a sha256", _SHA)},
    "patches": {_ANY: [_Text("a file and its sha256", rf"[^ ]* {_SHA}")]},
    "models": {_ANY: _Text("a commit", _COMMIT)},
    "python": {_ANY: {_ANY: _PYTHON}},
    "apt": {_ANY: {_ANY: _APT}},
}


def load(root: Path) -> Lock | None:
    """The lock of the project in ``root``; None where there is none. Raises ProjectError with all problems."""
    path = root / FILE_NAME
    return read_lock(path) if path.exists() else None


def read_lock(path: Path) -> Lock:
    """The lock in a file. Raises ProjectError with all problems."""
    label = str(path)
    with contextlib.suppress(ValueError):
        label = min(os.path.relpath(path), label, key=len)
    top = yamlparse.read(path, label)
    version = top.items.get("format")
    if version is None or version.text != str(FORMAT):
        place = version.place("format") if version else Place(top.source.label)
        message = f"this envgen reads lock files of format {FORMAT}" + (f", not {version.text}" if version else "")
        hint = "use the envgen that wrote it; or remove the file and run `envgen lock`"
        raise ProjectError([Problem(message, place, hint)])
    problems: list[Problem] = []
    found = _plain(top, _FILE, "", problems)
    if problems:
        raise ProjectError(problems)
    return _lock(found)


def _plain(node: Node, shape: Any, key: str, problems: list[Problem]) -> Any:
    """The value at ``node`` as ``shape`` describes it; None, and a problem, for anything else."""

    def bad(message: str, at: Node = node, where: str = key) -> None:
        hint = "bring back what was committed; or remove the file, and `envgen lock` writes a new one"
        problems.append(Problem(message, at.place(where), hint))

    if isinstance(shape, _Text):
        if node.kind in ("map", "list", "null") or not re.fullmatch(shape.pattern, node.text):
            return bad(f"expected {shape.what}, found {node.seen()}")
        return node.text
    if isinstance(shape, list):
        if node.kind != "list":
            return bad("expected a list")
        return [_plain(child, shape[0], key, problems) for child in node.elements]
    if _ANY in shape and (node.kind == "null" or (node.kind == "list" and not node.items)):
        return {}
    if node.kind != "map":
        return bad(f"expected a mapping, found {node.seen()}")
    found: dict[str, Any] = {}
    for name, child in node.items.items():
        where = f"{key}.{name}".lstrip(".")
        if (inner := shape.get(name, shape.get(_ANY))) is None:
            bad("unknown key", child, where)
        else:
            found[name] = _plain(child, inner, where, problems)
    for name, inner in shape.items():
        if name not in (_ANY, *node.items):
            found[name] = {}
            if not isinstance(inner, dict) or _ANY not in inner:
                bad(f"{name} is missing", where=f"{key}.{name}".lstrip("."))
    return found


def _lock(found: dict[str, Any]) -> Lock:
    """A lock from a file without problems."""
    git = {}
    for key, one in found["git"].items():
        url, _, ref = key.rpartition(" ")
        modules = [(path, *text.split(" ", 1)) for path, text in one["submodules"].items()]
        inner = tuple(Submodule(path, address, commit) for path, commit, address in modules)
        git[git_key(url, ref)] = GitLock(url, ref, one["commit"], one["kind"], inner, one["resolved"])
    return Lock(
        images={
            name: ImageLock(name, one["digest"], one["platforms"], one["resolved"], int(one["created"]))
            for name, one in found["images"].items()
        },
        git=git,
        files=found["files"],
        patches={
            folder: tuple(PatchLock(*text.split(" ")) for text in texts) for folder, texts in found["patches"].items()
        },
        python={
            profile: {platform: _python(one) for platform, one in platforms.items()}
            for profile, platforms in found["python"].items()
        },
        apt={
            profile: {
                platform: AptLock(one["asks"], tuple(one["build"]), tuple(one["runtime"]))
                for platform, one in platforms.items()
            }
            for profile, platforms in found["apt"].items()
        },
        models=found["models"],
    )


def _python(found: dict[str, Any]) -> PythonLock:
    def pinned(text: str) -> Pinned:
        package, *hashes = text.split(" ")
        name, _, version = package.partition("==")
        return Pinned(name, version, tuple(hashes))

    sets = {name: tuple(map(pinned, texts)) for name, texts in found["sets"].items()}
    return PythonLock(found["asks"], found["python"], sets, found["open"])
