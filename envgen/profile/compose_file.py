"""Checks a profile's own Compose file, which comes with the project and is read on the host.

Compose starts the program of a service's ``provider`` on this machine, even in dry runs; it fetches a remote
``include``; and it reads the files that are named in ``env_file``, ``secrets``, ``configs``, ``extends`` and so on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from envgen.errors import Place, Problem, ProjectError
from envgen.profile.tree import LIST, MAP, PROJECT, ValueText, YamlNode, parse, text_of
from envgen.redact import secret_in

MOST = 20  # files that one includes or extends, itself among them
# A key with files, and the keys below it with files; "": the value itself.
_FILES = {
    "env_file": ("", "path"), "label_file": ("",), "extends": ("file",), "credential_spec": ("file",),
    "include": ("", "path", "env_file", "project_directory"),
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
        for number, line in enumerate(source.text.split("\n"), 1):
            if kind := secret_in(line):
                hint = "write `secrets: [NAME]` in the profile, and ${NAME} there"
                found.append(Problem(f"looks like a secret ({kind})", Place(label, number), hint))
        top, problems = parse(source, foreign=True)
        found += problems
        if top is not None and not problems:
            found += dict.fromkeys(_providers(top))  # through a merge key the same value stands in two places
            for key, node in dict.fromkeys(_paths(top)):
                bases = [root / "compose"] + [path.parent] * (key in _READ_ON or path.parent != root)
                places = [place for base in bases if (place := Path(os.path.normpath(base / node.text))).exists()]
                found += _path(key, node, places, root)
                queue += [place for place in places if key in _READ_ON and place.is_file()]
    return found


def _providers(node: YamlNode) -> Iterator[Problem]:
    for name, child in node.items.items():
        if node.kind == MAP and name == "provider":
            message = "Compose starts the program of a `provider` on this machine"
            hint = "start the program yourself, or make it a service with an image"
            yield Problem(message, child.key_place("provider"), hint)
        yield from _providers(child)


def _paths(top: YamlNode) -> Iterator[tuple[str, YamlNode]]:
    """The keys with files, and each path that they name."""
    yield from _named(top)
    for kind, key in _OF_NAMES.items():
        entries = top.items.get(kind)
        for one in entries.items.values() if entries is not None and entries.kind == MAP else ():
            if one.kind == MAP and key in one.items:
                yield kind, one.items[key]


def _named(node: YamlNode) -> Iterator[tuple[str, YamlNode]]:
    for name, child in node.items.items():
        for key in _FILES.get(name, ()) if node.kind == MAP else ():
            # A value that is a path, a list of paths, or (a list of) mappings that hold them below ``key``.
            for one in child.items.values() if child.kind == LIST else (child,):
                if one.kind not in (MAP, LIST) and not key:
                    yield name, one
                elif one.kind == MAP and key in one.items:
                    inner = one.items[key]
                    yield from ((name, each) for each in (inner.items.values() if inner.kind == LIST else (inner,)))
        yield from _named(child)


def _path(key: str, node: YamlNode, places: list[Path], root: Path) -> Iterator[Problem]:
    """What is wrong with a path, which must be one of the project; ``places``: what it names."""
    text = node.text
    if node.kind in (MAP, LIST) or not text or "$" in text or ":" in text or text.startswith("~"):
        yield Problem(f"`{key}` is not a plain path: {text!r}", node.place(), "write the path of a file of the project")
    elif not any(place.is_relative_to(root) for place in places):
        hint = "relative paths start from compose/: ../NAME is a file beside envgen.yaml"
        yield Problem(f"`{key}`: {text!r} is not a file of the project", node.place(), hint)
    elif not all(place.resolve().is_relative_to(root) for place in places):
        yield Problem(f"`{key}`: {text!r} leaves the project folder", node.place(), "copy the file into the project")
