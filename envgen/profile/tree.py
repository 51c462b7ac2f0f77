"""The positioned tree that every layer becomes before layers are merged: mappings, lists and scalars with their place.

A scalar keeps its source text; what it means (text, number, yes or no) follows YAML 1.2's core schema, which is what
editors check against: ``no`` and ``on`` are text, ``8:30`` is text, ``true`` is a boolean.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from envgen.errors import Place
from envgen.text import masked, visible

MAP, LIST, TEXT, INT, FLOAT, BOOL, NULL = "map", "list", "text", "int", "float", "bool", "null"

# What a reader is shown as his input.
SEEN = {
    MAP: "a mapping",
    LIST: "a list",
    TEXT: "text",
    INT: "a whole number",
    FLOAT: "a number",
    BOOL: "true or false",
    NULL: "nothing",
}

PROJECT, LOCAL, VARIANT, ENVIRONMENT, SET, DEFAULT = "project", "local", "variant", "environment", "set", "default"


@dataclass(eq=False)
class Source:
    """A text that values come from: a file, a variable or an option. ``label`` is how the user knows it."""

    label: str
    layer: str
    text: str = ""

    @property
    def is_file(self) -> bool:
        return self.layer in (PROJECT, LOCAL, VARIANT)

    def line(self, number: int) -> str:
        """The text of line ``number`` (from 1); long lines are cut, control characters shown as ``?``."""
        if not 1 <= number <= len(self._lines):
            return ""
        return masked(self._lines[number - 1].rstrip("\r")[:200])

    @cached_property
    def _lines(self) -> list[str]:
        return self.text.split("\n")

    def place(self, line: int, column: int, key: str = "") -> Place:
        """The place of a mark (from 1) in this source."""
        if not self.is_file or not line:
            return Place(self.label, key=key)
        return Place(self.label, line, column, key, self.line(line))


@dataclass(slots=True, eq=False)
class Node:
    """One value and where it stands. ``text``: of a scalar, as it is in the source."""

    kind: str
    source: Source
    line: int = 0
    column: int = 0
    key_line: int = 0  # where its key stands, when it is a value of a mapping
    key_column: int = 0
    text: str = ""
    items: dict[str, Node] = field(default_factory=dict)
    below: Node | None = field(default=None, repr=False)  # the value that this one replaced

    @property
    def elements(self) -> list[Node]:
        """The elements of a list."""
        return list(self.items.values())

    def place(self, key: str = "") -> Place:
        """Where the value stands."""
        return self.source.place(self.line, self.column, key)

    def key_place(self, key: str = "") -> Place:
        """Where the key of this value stands; the value itself when it has none."""
        if self.key_line:
            return self.source.place(self.key_line, self.key_column, key)
        return self.place(key)

    def with_items(self, items: dict[str, Node]) -> Node:
        """A mapping at the same place with other entries."""
        return Node(self.kind, self.source, self.line, self.column, self.key_line, self.key_column, items=items)

    def seen(self) -> str:
        """What stands here, for an error message."""
        if self.kind in (MAP, LIST, NULL):
            return SEEN[self.kind]
        text = self.text if len(self.text) <= 60 else self.text[:57] + "..."
        return f"{SEEN[self.kind]} ({text})" if self.kind != TEXT else f"the text {text!r}"


_NULLS = frozenset(("", "~", "null", "Null", "NULL"))
_BOOLS = frozenset(("true", "True", "TRUE", "false", "False", "FALSE"))
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


def plain_kind(text: str) -> str:
    """The kind of an unquoted scalar."""
    if text in _NULLS:
        return NULL
    if text in _BOOLS:
        return BOOL
    return INT if _INT.fullmatch(text) else FLOAT if _FLOAT.fullmatch(text) else TEXT


def scalar(text: str, source: Source, line: int = 0, column: int = 0, *, quoted: bool = False) -> Node:
    """A scalar node."""
    return Node(TEXT if quoted else plain_kind(text), source, line, column, text=text)


def near(word: str, known: list[str]) -> str:
    """``did you mean `x`?`` when something known looks like ``word``; else the known names; else nothing."""
    if not known:
        return ""
    found = difflib.get_close_matches(word.lower().replace("-", "_"), known, 1, 0.6)
    if found:
        return f"did you mean `{found[0]}`?"
    return "known: " + ", ".join(map(visible, known)) if len(known) <= 40 else ""


def written(node: Node, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str, Node]]:
    """Each value below ``node`` as the file spells it: its path, its text, its node."""
    if node.kind == MAP:
        for name, child in node.items.items():
            yield from written(child, (*path, name))
    elif node.kind == LIST:
        yield path, "[" + ", ".join(child.text for child in node.elements) + "]", node
    else:
        yield path, "null" if node.kind == NULL else node.text, node


def lay_over(tree: Node, name: str) -> Node | None:
    """What the variant ``name`` of ``tree`` changes, as a separate tree; None when there is no such variant.

    Its values keep their places; their layer says that they came by a variant.
    """
    node = tree.items.get("variants")
    node = node.items.get(name) if node is not None and node.kind == MAP else None
    if node is None or node.kind != MAP:
        return None
    sources: dict[int, Source] = {}
    return _copy(overlay(node), sources)


def overlay(node: Node) -> Node:
    """What a variant changes: all of it but its description."""
    return node.with_items({name: child for name, child in node.items.items() if name != "description"})


def _copy(node: Node, sources: dict[int, Source]) -> Node:
    source = sources.get(id(node.source))
    if source is None:
        source = sources[id(node.source)] = Source(node.source.label, VARIANT, node.source.text)
    return replace(node, source=source, items={name: _copy(child, sources) for name, child in node.items.items()})
