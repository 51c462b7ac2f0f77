"""Reading envgen.lock: every problem at once, each with its place."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

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
from envgen.profile import yamlfile
from envgen.profile.tree import Node

T = TypeVar("T")
_SHA = re.compile(r"[0-9a-f]{64}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def load(root: Path) -> Lock | None:
    """The lock of the project in ``root``; None where there is none. Raises ProjectError with all problems."""
    path = root / FILE_NAME
    return read_lock(path) if path.exists() else None


def read_lock(path: Path) -> Lock:
    """The lock in a file. Raises ProjectError with all problems."""
    label = str(path)
    with contextlib.suppress(ValueError):
        label = min(os.path.relpath(path), label, key=len)
    return _Reader().lock(yamlfile.read(path, label))


class _Reader:
    """Reads the tree and collects what is wrong with it."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def lock(self, top: Node) -> Lock:
        version = top.items.get("format")
        if version is None or version.text != str(FORMAT):
            place = version.place("format") if version else Place(top.source.label)
            message = f"this envgen reads lock files of format {FORMAT}" + (f", not {version.text}" if version else "")
            hint = "use the envgen that wrote it; or remove the file and run `envgen lock`"
            raise ProjectError([Problem(message, place, hint)])
        self._known(top, "", "format", "images", "git", "files", "patches", "models", "python", "apt")
        found = Lock(
            images=self._each(top, "", "images", self._image),
            git=dict(self._git(key, node, f"git.{key}") for key, node in self._items(top, "", "git")),
            files=self._each(top, "", "files", lambda _name, node, key: self._text(node, key, _SHA, "a sha256")),
            patches=self._each(top, "", "patches", self._patches),
            models=self._each(top, "", "models", lambda _name, node, key: self._text(node, key, _COMMIT, "a commit")),
            python=self._each(top, "", "python", lambda _n, node, key: self._platforms(node, key, self._python)),
            apt=self._each(top, "", "apt", lambda _n, node, key: self._platforms(node, key, self._apt)),
        )
        if self.problems:
            raise ProjectError(self.problems)
        return found

    def _bad(self, node: Node, key: str, message: str) -> None:
        hint = "bring back what was committed; or remove the file, and `envgen lock` writes a new one"
        self.problems.append(Problem(message, node.place(key), hint))

    def _known(self, node: Node, key: str, *names: str) -> None:
        for name, child in node.items.items():
            if name not in names:
                self._bad(child, f"{key}.{name}".lstrip("."), "unknown key")

    def _items(self, node: Node, key: str, name: str) -> list[tuple[str, Node]]:
        child = node.items.get(name)
        if child is None or child.kind == "null":
            return []
        if child.kind != "map":
            if child.items or child.kind != "list":
                self._bad(child, f"{key}.{name}".lstrip("."), f"expected a mapping, found {child.seen()}")
            return []
        return list(child.items.items())

    def _each(self, node: Node, key: str, name: str, read: Callable[[str, Node, str], T]) -> dict[str, T]:
        where = f"{key}.{name}".lstrip(".")
        return {each: read(each, child, f"{where}.{each}") for each, child in self._items(node, key, name)}

    def _platforms(self, node: Node, key: str, read: Callable[[Node, str], T]) -> Mapping[str, T]:
        if node.kind != "map":
            self._bad(node, key, f"expected a mapping, found {node.seen()}")
            return {}
        return {platform: read(child, f"{key}.{platform}") for platform, child in node.items.items()}

    def _text(
        self, node: Node | None, key: str, pattern: re.Pattern[str] | None, what: str, parent: Node | None = None
    ) -> str:
        if node is None:
            assert parent is not None
            self._bad(parent, key, f"{key.rpartition('.')[2]} is missing")
            return ""
        if node.kind in ("map", "list", "null") or (pattern and not pattern.fullmatch(node.text)):
            self._bad(node, key, f"expected {what}, found {node.seen()}")
            return ""
        return node.text

    def _image(self, name: str, node: Node, key: str) -> ImageLock:
        self._known(node, key, "digest", "platforms", "created", "resolved")
        get = node.items.get
        return ImageLock(
            name,
            self._text(get("digest"), f"{key}.digest", _DIGEST, "sha256: and 64 digits", node),
            self._each(node, key, "platforms", lambda _n, n, k: self._text(n, k, _DIGEST, "sha256: and 64 digits")),
            self._text(get("resolved"), f"{key}.resolved", re.compile("registry|local"), "how", node),
            int(self._text(get("created"), f"{key}.created", re.compile("[0-9]{1,12}"), "seconds", node) or 0),
        )

    def _git(self, name: str, node: Node, key: str) -> tuple[str, GitLock]:
        self._known(node, key, "commit", "kind", "submodules", "resolved")
        url, _, ref = name.rpartition(" ")
        get = node.items.get
        modules = []
        for path, child in self._items(node, key, "submodules"):
            commit, _, address = self._text(
                child, f"{key}.submodules.{path}", None, "a commit and an address"
            ).partition(" ")
            if not _COMMIT.fullmatch(commit):
                self._bad(child, f"{key}.submodules.{path}", "expected a commit and an address")
            modules.append(Submodule(path, address, commit))
        found = GitLock(
            url,
            ref,
            self._text(get("commit"), f"{key}.commit", _COMMIT, "a commit of 40 hexadecimal digits", node),
            self._text(get("kind"), f"{key}.kind", re.compile("tag|branch|commit|pull"), "a kind", node),
            tuple(modules),
            self._text(get("resolved"), f"{key}.resolved", re.compile("git"), "how", node),
        )
        return git_key(url, ref), found

    def _list(self, node: Node | None, key: str, parent: Node) -> list[tuple[str, Node]]:
        if node is None or node.kind != "list":
            self._bad(node or parent, key, "expected a list")
            return []
        return [(self._text(child, key, None, "text"), child) for child in node.elements]

    def _patches(self, _name: str, node: Node, key: str) -> tuple[PatchLock, ...]:
        found = []
        for text, child in self._list(node, key, node):
            file, _, sha256 = text.partition(" ")
            if not _SHA.fullmatch(sha256):
                self._bad(child, key, "expected a file and its sha256")
            found.append(PatchLock(file, sha256))
        return tuple(found)

    def _pins(self, _name: str, node: Node, key: str) -> tuple[Pinned, ...]:
        found = []
        for text, child in self._list(node, key, node):
            words = text.split(" ")
            name, equals, version = words[0].partition("==")
            if not equals or not words[1:] or not all(_SHA.fullmatch(word) for word in words[1:]):
                self._bad(child, key, "expected a package, its version and the sha256 of its files")
            found.append(Pinned(name, version, tuple(words[1:])))
        return tuple(found)

    def _python(self, node: Node, key: str) -> PythonLock:
        self._known(node, key, "asks", "python", "open", "sets")
        get = node.items.get
        return PythonLock(
            self._text(get("asks"), f"{key}.asks", None, "a digest", node),
            self._text(get("python"), f"{key}.python", None, "a version", node),
            self._each(node, key, "sets", self._pins),
            self._each(node, key, "open", lambda _n, n, k: self._text(n, k, None, "a reason")),
        )

    def _apt(self, node: Node, key: str) -> AptLock:
        self._known(node, key, "asks", "build", "runtime")
        get = node.items.get
        return AptLock(
            self._text(get("asks"), f"{key}.asks", None, "a digest", node),
            tuple(text for text, _ in self._list(get("build"), f"{key}.build", node)),
            tuple(text for text, _ in self._list(get("runtime"), f"{key}.runtime", node)),
        )
