"""Checks a profile's own Compose file, which comes with the project and is read on the host.

Compose starts the program of a service's ``provider`` on this machine, even in dry runs; it fetches a remote
``include``; and it reads the files in ``env_file``, ``secrets``, ``configs`` and ``extends``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from envgen.errors import Place, Problem, ProjectError
from envgen.profile.tree import LIST, MAP, PROJECT, ValueText, YamlNode, parse, text_of
from envgen.redact import secret_in
from envgen.text import forbidden_character

MOST = 20  # files that one includes or extends, itself among them
# A key with files, and the keys below it with files; "": the value itself.
_FILES = {
    "env_file": ("", "path"), "label_file": ("",), "extends": ("file",), "include": ("", "path", "env_file"),
    "credential_spec": ("file",),
}  # fmt: skip
_OF_NAMES = {"secrets": "file", "configs": "file"}  # at the top: name -> {file: ...}
_READ_ON = ("extends", "include")  # their files are Compose files, too


def problems_of(file: Path, root: Path) -> list[Problem]:
    """All problems of ``file`` and the files that it includes or extends."""
    root, found = root.resolve(), list[Problem]()
    queue, seen = [file], set[Path]()
    while queue and not found:
        path = queue.pop()
        if path in seen:
            continue
        seen.add(path)
        if len(seen) > MOST:
            return [Problem(f"{file.name} includes or extends more than {MOST} files", hint="write fewer")]
        label = os.path.relpath(path, root)
        try:
            source = ValueText(label, PROJECT, text_of(path, label))
        except ProjectError as error:
            return list(error.problems)
        found += _text(source)
        top, problems = parse(source, foreign=True)
        found += problems
        if top is not None and not problems:
            walk = _Walk(root, path)
            found += dict.fromkeys(walk.top(top))  # through a merge key the same value stands in two places
            queue += walk.others
    return found


def all_files(file: Path, root: Path) -> list[Path]:
    """``file`` and all files that it names, directly or through others: those of ``_FILES`` and ``_OF_NAMES``.

    A file that can't be read or parsed names none.
    """
    queue, seen = [file], dict[Path, None]()
    while queue and len(seen) < MOST:
        path = queue.pop()
        if path in seen or not path.is_file():
            continue
        seen[path] = None
        label = os.path.relpath(path, root)
        try:
            top, _ = parse(ValueText(label, PROJECT, text_of(path, label)), foreign=True)
        except ProjectError:
            continue
        if top is not None:
            walk = _Walk(root.resolve(), path)
            list(walk.top(top))
            queue += walk.named
    return sorted(seen)


def _text(source: ValueText) -> Iterator[Problem]:
    """Problems of a committed text: secrets, and control characters, which some YAML readers take for line breaks."""
    for number, line in enumerate(source.text.split("\n"), 1):
        if forbidden_character(line.removesuffix("\r").replace("\t", " ")):
            yield Problem("contains a control character", source.place(number, 1), "remove it")
        elif kind := secret_in(line):
            hint = "write `secrets: [NAME]` in the profile, and ${NAME} there"
            yield Problem(f"looks like a secret ({kind})", Place(source.label, number), hint)


class _Walk:
    """One file. ``named``: the files that it names; ``others``: the Compose files among them."""

    def __init__(self, root: Path, file: Path) -> None:
        self._root, self._file = root, file
        self.others: list[Path] = []
        self.named: list[Path] = []

    def top(self, top: YamlNode) -> Iterator[Problem]:
        if "name" in top.items:
            yield Problem(
                "`name` would change the name of this project's containers", top.items["name"].key_place("name"),
                "remove it; `name:` of envgen.yaml is the project's",
            )  # fmt: skip
        if "models" in top.items:
            place = top.items["models"].key_place("models")
            yield Problem(
                "Compose starts a plugin on this machine for `models`", place, "serve the model in a container"
            )
        yield from self._node(top)
        for kind, key in _OF_NAMES.items():
            entries = top.items.get(kind)
            for one in entries.items.values() if entries is not None and entries.kind == MAP else ():
                if one.kind == MAP and key in one.items:
                    yield from self._path(kind, one.items[key])

    def _node(self, node: YamlNode) -> Iterator[Problem]:
        for name, child in node.items.items():
            if node.kind == MAP and name == "provider":
                yield Problem(
                    "Compose starts the program of a `provider` on this machine", child.key_place("provider"),
                    "start the program yourself, or make it a service with an image",
                )  # fmt: skip
            if node.kind == MAP and name == "project_directory":
                yield Problem(
                    "`project_directory` would change the meaning of every path", child.key_place(name), "remove it"
                )
            for key in _FILES.get(name, ()) if node.kind == MAP else ():
                for one in self._values(child, key):
                    yield from self._path(name, one)
            yield from self._node(child)

    def _values(self, node: YamlNode, key: str) -> Iterator[YamlNode]:
        """The scalars of a value that is one, a list of them, or (a list of) mappings that hold them below ``key``."""
        for one in node.items.values() if node.kind == LIST else (node,):
            if one.kind not in (MAP, LIST) and not key:
                yield one
            elif one.kind == MAP and key in one.items:
                inner = one.items[key]
                yield from (inner.items.values() if inner.kind == LIST else (inner,))

    def _path(self, key: str, node: YamlNode) -> Iterator[Problem]:
        """Problems of a path, which must be a file of the project, relative to compose/ or to the Compose file."""
        text, bases = node.text, [self._root / "compose"]
        if key in _READ_ON or self._file.parent != self._root:
            bases.append(self._file.parent)
        places = [Path(os.path.normpath(base / text)) for base in bases]
        self.named += [place for place in places if place.is_file()]
        if node.kind in (MAP, LIST) or not text or "$" in text or ":" in text or text.startswith("~"):
            yield Problem(
                f"`{key}` is not a plain path: {text!r}", node.place(), "write the path of a file of the project"
            )
        elif not any(place.is_relative_to(self._root) and place.exists() for place in places):
            hint = "relative paths start from compose/: ../NAME is a file beside envgen.yaml"
            yield Problem(f"`{key}`: {text!r} is not a file of the project", node.place(), hint)
        elif any(not place.resolve().is_relative_to(self._root) for place in places if place.exists()):
            yield Problem(
                f"`{key}`: {text!r} leaves the project folder", node.place(), "copy the file into the project"
            )
        elif key in _READ_ON:
            self.others += [place for place in places if place.is_file()]
