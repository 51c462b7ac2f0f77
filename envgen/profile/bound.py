"""A profile as it was bound, with the place of each key: what checks judge."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from envgen.errors import Problem
from envgen.profile import tree as nodes
from envgen.profile.bind import LOCAL_HINT, Binding, Path_, below
from envgen.profile.model import Profile, Source
from envgen.profile.tree import YamlNode
from envgen.profile.values import HostPath, own_path


@dataclass(frozen=True)
class BoundProfile:
    """What the semantic checks see of one profile, and where they add problems: at paths below
    ``base``.

    A path is a tuple (list items by their number), or keys joined by dots.
    """

    profile: Profile
    tree: YamlNode
    _binding: Binding
    root: Path
    base: Path_ = ()

    def at(self, *path: str) -> BoundProfile:
        """The same report for paths below ``path``."""
        return replace(self, base=(*self.base, *path))

    @property
    def top(self) -> BoundProfile:
        """The same report for the whole profile."""
        return replace(self, base=())

    def _full(self, path: Path_ | str) -> tuple[list[str], str]:
        """The parts of the whole path, and its spelling."""
        if isinstance(path, str):
            path = tuple(path.split(".")) if path else ()
        parts = [str(part) for part in (*self.base, *path)]
        key = ""
        for part in parts:
            if part.isdigit() and key:
                key = f"{key}[{part}]"
            else:
                key = below(key, part)
        return parts, key

    def problem(
        self,
        path: Path_ | str,
        message: str,
        hint: str = "",
        *,
        whole: bool = False,
        hidden: bool = False,
    ) -> None:
        """Add a problem with the value at ``path``; ``hidden``: it is a secret, so its line is not
        shown.

        A value that could not be bound gets no second problem; with ``whole``, nor one with a
        broken value below it.
        """
        parts, key = self._full(path)
        broken = self._binding.broken
        if any(_covers(other, key) or (whole and _covers(key, other)) for other in broken):
            return
        node = self.tree
        missing = False
        for part in parts:  # a default has no place: take the nearest value that is written
            missing = part not in node.items
            if missing:
                break
            node = node.items[part]
        place = node.key_place(key) if missing or node.kind == nodes.MAP else node.place(key)
        self._binding.problems.append(
            Problem(message, replace(place, text="") if hidden else place, hint)
        )

    def once(
        self,
        taken: dict[object, str],
        value: object,
        owner: str,
        path: str,
        what: str,
        hint: str = "",
    ) -> None:
        """Add a problem where ``value`` is taken by another than ``owner``; ``what``: its name, {}
        for the other's.
        """
        first = taken.setdefault(value, owner)
        if first != owner:
            self.problem(path, f"{value} is already {what.format(first)}", hint or "choose another")

    def host_path(self, path: str, value: HostPath, *, checkout: bool = False) -> None:
        """Check a path of the machine. The shared file comes from others, so it may name places in
        the project and in
        the home folder, but no hidden ones (except ~/.cache); a ``checkout`` may also be beside the
        project."""
        if self.is_shared(path):
            if value.is_machine_specific:
                message = f"{str(value)!r} is an absolute path; this file is shared"
                self.problem(path, message, LOCAL_HINT.format("an absolute path"))
            elif message := self._elsewhere(value, checkout):
                self.problem(path, f"{str(value)!r} {message}", LOCAL_HINT.format("such a path"))
        if value.path.startswith("~") and not value.path.startswith("~/") and value.path != "~":
            self.problem(
                path, f"{str(value)!r} names another user's home", "write ~/... or an absolute path"
            )
        if re.search("[${}]", value.path):
            message = f"{str(value)!r} contains a $ or a brace, but variables are not expanded here"
            self.problem(
                path, message, "write ~/... for your home, or reach the folder through a link"
            )

    def _elsewhere(self, value: HostPath, checkout: bool) -> str:
        """Why the shared file must not name this path; "" where it may."""
        parts = os.path.normpath(value.path).split("/")
        if not value.is_relative:
            home, *below = parts
            is_open = below and (below[0] == ".cache" or not below[0].startswith("."))
            if home == "~" and not is_open:
                return "may hold your keys and settings, and this file is shared"
            return ""
        if parts[0] == "..":
            beside = checkout and len(parts) > 1 and not parts[1].startswith(".")
            return "" if beside else "leaves the project folder, and this file is shared"
        place = self.root / value.path
        if not place.resolve().is_relative_to(self.root.resolve()):
            return "is a link that leaves the project folder, and this file is shared"
        return ""

    def in_project(self, path: Path_ | str, text: str) -> None:
        """Check that the file or folder ``text`` is in the project."""
        plain = self.own_path(path, text)
        if plain is None:
            return
        place = self.root / plain
        if not place.exists():
            self.problem(
                path, f"{plain!r} does not exist in the project", "create it, or correct the path"
            )
        elif not place.resolve().is_relative_to(self.root.resolve()):
            self.problem(
                path, f"{plain!r} is a link that leaves the project folder", "copy it here"
            )

    def own_path(self, path: Path_ | str, text: str) -> str | None:
        """``text`` in its plain spelling; None, with a problem, where it is no path of the project."""
        try:
            return own_path(text)
        except ValueError as error:
            self.problem(path, str(error), "copy it into the project folder")
        return None

    @property
    def partial(self) -> bool:
        """Whether what the profile extends is unknown, so that nothing can be reported as missing."""
        return self._binding.partial

    def is_broken(self, path: str) -> bool:
        """True when the value at ``path`` is missing or wrong, and the profile holds a stand-in."""
        return self._full(path)[1] in self._binding.broken

    def sources(self, *keys: str) -> list[tuple[str, Source]]:
        """The sources in which none of ``keys`` is broken."""
        sources = self.profile.sources.items()
        return [
            (name, s)
            for name, s in sources
            if not any(self.top.is_broken(f"sources.{name}.{key}") for key in keys)
        ]

    def node(self, path: str) -> YamlNode | None:
        """The node at ``path``, or None where the value is a default."""
        return self.tree.at(self._full(path)[0])

    def is_shared(self, path: str) -> bool:
        """True when the value at ``path`` comes from the shared project file."""
        node = self.node(path)
        return node is not None and node.source.layer == nodes.PROJECT

    def names(self, path: str) -> list[str]:
        """The keys written at ``path``."""
        node = self.node(path)
        return node.names if node is not None else []


def _covers(key: str, other: str) -> bool:
    return other == key or (other.startswith(key) and other[len(key)] in ".[")
