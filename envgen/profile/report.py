"""What the semantic checks see of one profile, and where they put what they find."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from envgen.errors import Place, Problem
from envgen.profile.bind import Binding
from envgen.profile.model import Profile, Source
from envgen.profile.tree import MAP, PROJECT, Node
from envgen.profile.values import own_path

Path_ = tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """What the checks see of one profile, and where they put what they find."""

    profile: Profile
    tree: Node
    _binding: Binding
    root: Path

    def problem(
        self,
        path: Path_,
        message: str,
        hint: str = "",
        *,
        at_key: bool = False,
        whole: bool = False,
        hidden: bool = False,
    ) -> None:
        """Note a problem with the value at ``path`` (list items by their number).

        ``hidden``: the value is a secret, so its line is not shown.

        Nothing is noted about a value that could not be bound; with ``whole``, nor where anything below it could not.
        """
        broken = self._binding.broken
        key = ""
        for part in path:
            key = f"{key}[{part}]" if part.isdigit() and key else f"{key}.{part}" if key else part
            if key in broken:
                return
        if whole and any(other.startswith(key + ".") for other in broken):
            return
        place = self._place(path, key, at_key)
        self._binding.problems.append(Problem(message, replace(place, text="") if hidden else place, hint))

    def repeated(self, path: Path_, items: Sequence[object]) -> None:
        """Note what stands more than once in the list at ``path``."""
        for number, item in enumerate(items):
            if item in items[:number]:
                self.problem((*path, str(number)), f"{item} stands here twice", "remove one of them")

    def in_project(self, path: Path_, text: str) -> Path | None:
        """The file or folder ``text`` of the project; None, and a problem, where it is not there or leaves it."""
        try:
            plain = own_path(text)
        except ValueError as error:
            self.problem(path, str(error), "copy it into the project folder")
            return None
        place = self.root / plain
        if not place.exists():
            self.problem(path, f"there is no {plain!r} in the project", "make it, or correct the path")
        elif not place.resolve().is_relative_to(self.root.resolve()):
            self.problem(path, f"{plain!r} is a link that leaves the project folder", "copy it here")
        else:
            return place
        return None

    def is_broken(self, key: str) -> bool:
        """True when the value at ``key`` is missing or wrong, so that the profile holds a stand-in."""
        return key in self._binding.broken

    def sources(self, *keys: str) -> list[tuple[str, Source]]:
        """The sources of which all of ``keys`` are as the user wrote them."""
        return [
            (name, source)
            for name, source in self.profile.sources.items()
            if not any(self.is_broken(f"sources.{name}.{key}") for key in keys)
        ]

    def _place(self, path: Path_, key: str, at_key: bool) -> Place:
        node = self.node(path)
        if node is None:  # a default: the nearest thing that is written down
            return self.nearest(path).key_place(key)
        return node.key_place(key) if at_key else node.place(key)

    def node(self, path: Path_) -> Node | None:
        """The node at ``path``, or None where the value is a default."""
        node: Node | None = self.tree
        for part in path:
            node = node.items.get(part) if node is not None else None
        return node

    def nearest(self, path: Path_) -> Node:
        """The deepest node on the way to ``path``."""
        node = self.tree
        for part in path:
            below = node.items.get(part)
            if below is None:
                break
            node = below
        return node

    def is_shared(self, path: Path_) -> bool:
        """True when the value at ``path`` comes from the shared project file."""
        node = self.node(path)
        return node is not None and node.source.layer == PROJECT

    def names(self, path: Path_) -> list[str]:
        """The keys written at ``path``."""
        node = self.node(path)
        return list(node.items) if node is not None and node.kind == MAP else []
