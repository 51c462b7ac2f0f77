"""Parses YAML text into a tree with positions; layers are merged as trees.

A scalar keeps its source text; its kind follows YAML 1.2's core schema, as in editors:
``no`` and ``on`` are text, ``8:30`` is text, ``true`` is a boolean.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from envgen import files
from envgen.errors import Place, Problem, ProjectError
from envgen.profile.names import NAMES
from envgen.redact import redact_secrets
from envgen.text import did_you_mean, masked, reason_of, visible

MAP = "map"
LIST = "list"
TEXT = "text"
INT = "int"
FLOAT = "float"
BOOL = "bool"
NULL = "null"

# Kinds in messages.
SEEN = {
    MAP: "a mapping",
    LIST: "a list",
    TEXT: "text",
    INT: "a whole number",
    FLOAT: "a number",
    BOOL: "true or false",
    NULL: "nothing",
}

PROJECT = "project"
LOCAL = "local"
ENVIRONMENT = "environment"
SET = "set"
DEFAULT = "default"


@dataclass(eq=False)
class ValueText:
    """The text of values: a file, a variable or an option. ``label``: its name in messages."""

    label: str
    layer: str
    text: str = ""

    @property
    def is_file(self) -> bool:
        return self.layer in (PROJECT, LOCAL)

    def line(self, number: int) -> str:
        """The text of line ``number`` (from 1); long lines are cut, control characters shown as
        ``?``.
        """
        if not 1 <= number <= len(self._lines):
            return ""
        return masked(self._lines[number - 1].rstrip("\r")[:200])

    @cached_property
    def _lines(self) -> list[str]:
        return self.text.split("\n")

    def place(self, line: int, column: int, key: str = "") -> Place:
        """The place of a mark (from 1) in this source."""
        located = self.is_file and line
        return (
            Place(self.label, line, column, key, self.line(line))
            if located
            else Place(self.label, key=key)
        )


@dataclass(slots=True, eq=False)
class YamlNode:
    """One value and its position. ``text``: of a scalar, as in the source."""

    kind: str
    source: ValueText
    line: int = 0
    column: int = 0
    key_line: int = 0  # of its key, for a value of a mapping
    key_column: int = 0
    text: str = ""
    items: dict[str, YamlNode] = field(default_factory=dict)

    @property
    def elements(self) -> list[YamlNode]:
        """The elements of a list."""
        return list(self.items.values())

    @property
    def names(self) -> list[str]:
        """The keys of a mapping; none for anything else."""
        return list(self.items) if self.kind == MAP else []

    def at(self, path: Iterable[str]) -> YamlNode | None:
        """The value at ``path``, if there is one."""
        node: YamlNode | None = self
        for part in path:
            node = node.items.get(part) if node is not None else None
        return node

    def place(self, key: str = "") -> Place:
        """Position of the value."""
        return self.source.place(self.line, self.column, key)

    def key_place(self, key: str = "") -> Place:
        """Position of this value's key, or of the value itself when it has none."""
        return (
            self.source.place(self.key_line, self.key_column, key)
            if self.key_line
            else self.place(key)
        )

    def with_items(self, items: dict[str, YamlNode]) -> YamlNode:
        """A mapping at the same place with other entries."""
        return replace(self, items=items)

    def seen(self) -> str:
        """The value, for an error message: in short, and without secrets."""
        if self.kind in (MAP, LIST, NULL):
            return SEEN[self.kind]
        text = in_short(self.text)
        return f"{SEEN[self.kind]} ({text})" if self.kind != TEXT else f"the text {text!r}"


def in_short(text: str) -> str:
    """``text`` for a message."""
    text = redact_secrets(text)  # a secret that is cut has no shape any more
    return text if len(text) <= 60 else f"{text[:57]}..."


_NULLS = frozenset(("", "~", "null", "Null", "NULL"))
_BOOLS = frozenset(("true", "True", "TRUE", "false", "False", "FALSE"))
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(
    r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)


def plain_kind(text: str) -> str:
    """The kind of an unquoted scalar."""
    if text in _NULLS:
        return NULL
    if text in _BOOLS:
        return BOOL
    if _INT.fullmatch(text):
        return INT
    return FLOAT if _FLOAT.fullmatch(text) else TEXT


def scalar(
    text: str, source: ValueText, line: int = 0, column: int = 0, *, quoted: bool = False
) -> YamlNode:
    """A scalar node."""
    return YamlNode(TEXT if quoted else plain_kind(text), source, line, column, text=text)


def suggestion(word: str, known: list[str]) -> str:
    """A similar name, else the known ones, unless there are many."""
    return did_you_mean(known, word) or _known(known)


def profile_hint(profile: str, known: list[str]) -> str:
    """A hint for a profile that isn't there: a similar name, and the profiles that there are."""
    return "; ".join(filter(None, (did_you_mean(known, profile), _known(known))))


def _known(known: list[str]) -> str:
    return f"known: {', '.join(map(visible, known))}" if 0 < len(known) <= 40 else ""


def written(
    node: YamlNode, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], str, YamlNode]]:
    """(path, text, node) of each value below ``node``, as written in the file."""
    if node.kind == MAP:
        for name, child in node.items.items():
            yield from written(child, (*path, name))
    elif node.kind == LIST:
        yield path, f"[{', '.join(child.text for child in node.elements)}]", node
    else:
        yield path, "null" if node.kind == NULL else node.text, node


def below(node: YamlNode, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], YamlNode]]:
    """Each value below ``node``, with its path."""
    for name, child in node.items.items():
        yield (*path, name), child
        yield from below(child, (*path, name))


def join_path(parts: Iterable[str]) -> str:
    """The text of a path for ``layers.split_path``: parts with a dot, a quote or `=` are in double
    quotes.
    """
    spelled = []
    for part in parts:
        if not re.fullmatch('[^."=]+', part):
            doubled = part.replace('"', '""')
            part = f'"{doubled}"'
        spelled.append(part)
    return ".".join(spelled)


def overlay(node: YamlNode) -> YamlNode:
    """The changes of a variant: all but its description."""
    items = dict(node.items)
    items.pop("description", None)
    return node.with_items(items)


MAX_BYTES = 1 << 20
MAX_NODES = 50_000
MAX_DEPTH = 60

_Loader: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_CORE = "tag:yaml.org,2002:"
_PLAIN_TAGS = frozenset((_CORE + "str", _CORE + "map", _CORE + "seq"))
_COMPOSE_TAGS = frozenset(("!reset", "!override"))


def parse(source: ValueText, *, foreign: bool = False) -> tuple[YamlNode | None, list[Problem]]:
    """The tree of a file's text, whose top must be a mapping; an empty one for a file without
    anything in it.

    ``foreign``: a file of another program (Compose, a recipe), which may have merge keys (``<<``).
    """
    node, problems = _tree(source, foreign)
    if not problems and node is None:
        node = YamlNode(MAP, source)
    elif not problems and node is not None and node.kind != MAP:
        problems = [Problem(f"expected a mapping at the top, found {node.seen()}", node.place())]
    return node, problems


def parse_value(source: ValueText) -> tuple[YamlNode | None, list[Problem]]:
    """The tree of one override's value in YAML's flow style (``[a, b]``, ``{a: b}``, quoted text)."""
    node, problems = _tree(source)
    return node if node is not None or problems else scalar("", source), problems


def _tree(source: ValueText, foreign: bool = False) -> tuple[YamlNode | None, list[Problem]]:
    walker = _Walker(source, foreign)
    try:
        top = _composed(source)
        return walker.walk(top, "") if top is not None else None, walker.problems
    except yaml.YAMLError as error:
        return None, [_syntax(error, source)]
    except _TooLarge as error:
        return None, [*walker.problems, error.args[0]]


class _TooLarge(Exception):
    """The text is not read to its end; the argument is the problem."""


def _composed(source: ValueText) -> yaml.Node | None:
    """PyYAML's tree. The composer of libyaml recurses in C without a limit, so the depth is checked
    before.
    """
    depth = 0
    for event in yaml.parse(source.text, Loader=_Loader):
        if isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                place = _place_of(event.start_mark, source)
                raise _TooLarge(Problem(f"nests deeper than {MAX_DEPTH} levels", place))
    return yaml.compose(source.text, Loader=_Loader)


def _place_of(mark: Any, source: ValueText, path: str = "") -> Place:
    return source.place(mark.line + 1, mark.column + 1, path)


def _syntax(error: yaml.YAMLError, source: ValueText) -> Problem:
    message = getattr(error, "problem", None) or getattr(error, "reason", None)
    message = message or "is not text that YAML can carry"
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark:
        place = _place_of(mark, source)
    else:
        place = _at(getattr(error, "position", None), source)
    # libyaml's own limit, from PyYAML 6.0.4: it reads ahead of the events.
    if "nesting depth" in message:
        return Problem(f"nests deeper than {MAX_DEPTH} levels", place)
    if not source.is_file:
        hint = "quote it, or write plain text"
        return Problem(f"is not a YAML value: {message}", Place(source.label), hint)
    if "but found another document" in message:
        hint = "a project file is one document; remove the `---`"
        return Problem("a second document begins here", place, hint)
    context = getattr(error, "context", None)
    if context:
        shown = f"is not YAML: {message} ({context})"
    else:
        shown = f"is not YAML: {message}"
    hints = [hint for part, hint in NAMES["syntax_hints"].items() if part in message]
    return Problem(shown, place, "".join(hints[:1]))


def _at(position: int | None, source: ValueText) -> Place:
    """The place of an invalid byte."""
    if position is None:
        return Place(source.label)
    encoded = source.text.encode("utf-8", "replace")
    before = encoded[:position].decode("utf-8", "replace")
    _, _, line = before.rpartition("\n")
    number = before.count("\n") + 1
    return source.place(number, len(line) + 1)


@dataclass(eq=False)
class _Walker:
    """Converts PyYAML's nodes, and collects problems."""

    source: ValueText
    foreign: bool
    problems: list[Problem] = field(default_factory=list)
    count: int = 0
    depth: int = 0

    def problem(self, node: yaml.Node, path: str, message: str, hint: str = "") -> None:
        self.problems.append(Problem(message, _place_of(node.start_mark, self.source, path), hint))

    def walk(self, node: yaml.Node, path: str) -> YamlNode:
        """The tree below ``node``. Aliases are followed, so size and depth are checked here."""
        line = node.start_mark.line + 1
        column = node.start_mark.column + 1
        self.count += 1
        if node.tag not in _PLAIN_TAGS and not (self.foreign and node.tag in _COMPOSE_TAGS):
            shown = node.tag.replace(_CORE, "!!", 1)
            self.problem(node, path, f"the tag {shown} is not supported", "remove the tag")
        if isinstance(node, yaml.ScalarNode):
            return scalar(node.value, self.source, line, column, quoted=bool(node.style))
        limit = ""
        if self.count > MAX_NODES:
            limit = f"expands to more than {MAX_NODES} values"
        elif self.depth >= MAX_DEPTH:
            limit = f"nests deeper than {MAX_DEPTH} levels through aliases"
        if limit:
            hint = "write the values out instead of using aliases"
            raise _TooLarge(Problem(limit, self.source.place(line, column, path), hint))
        self.depth += 1
        kind = MAP
        if isinstance(node, yaml.SequenceNode):
            kind = LIST
            items = {}
            for index, item in enumerate(node.value):
                items[str(index)] = self.walk(item, f"{path}[{index}]")
        else:
            items = self._entries(node.value, path)
        self.depth -= 1
        return YamlNode(kind, self.source, line, column, items=items)

    def _entries(self, pairs: list[tuple[yaml.Node, yaml.Node]], path: str) -> dict[str, YamlNode]:
        entries: dict[str, YamlNode] = {}
        below: dict[str, YamlNode] = {}  # from merge keys
        for key, value in pairs:
            if not isinstance(key, yaml.ScalarNode):
                self.problem(key, path, "a key must be plain text")
                continue
            name = key.value
            if key.tag not in _PLAIN_TAGS:  # Compose reads `!!binary cHJvdmlkZXI=` as `provider`
                shown = key.tag.replace(_CORE, "!!", 1)
                message = f"the tag {shown} is not supported for a key"
                self.problem(key, path, message, "remove the tag")
            inner = f"{path}.{name}" if path else name
            is_merge = name == "<<" and not key.style
            if is_merge and self.foreign:
                merged = self.walk(value, inner)
                mappings = merged.elements if merged.kind == LIST else [merged]
                # Of several, the first wins; entries beside the key win over all.
                for mapping in reversed(mappings):
                    if mapping.kind == MAP:
                        below |= mapping.items
            elif is_merge:
                hint = "put shared values into `defaults`, or let one profile extend another"
                self.problem(key, path, "merge keys (<<) are not supported", hint)
            elif name in entries:
                message = f"the key is already there, on line {entries[name].key_line}"
                self.problem(key, inner, message, "keep one of them")
            else:
                child = self.walk(value, inner)
                child.key_line = key.start_mark.line + 1
                child.key_column = key.start_mark.column + 1
                entries[name] = child
        return {**below, **entries}


def label_of(path: Path) -> str:
    """A file's name in messages: relative to the current folder where that is shorter."""
    with suppress(ValueError, OSError):
        return min(os.path.relpath(path), str(path), key=len)
    return str(path)


def read(
    path: Path, label: str, *, layer: str = PROJECT, limit: int = MAX_BYTES, text: str | None = None
) -> YamlNode:
    """Read ``path``, called ``label`` in messages, as one mapping; ``limit`` in bytes. Raises
    ProjectError.
    """
    node, problems = parse(
        ValueText(label, layer, file_text(path, label, limit) if text is None else text)
    )
    if problems or node is None:
        raise ProjectError(problems)
    return node


def file_text(path: Path, label: str, limit: int = MAX_BYTES) -> str:
    """The text of ``path``, called ``label`` in messages: at most ``limit`` bytes of UTF-8. Raises
    ProjectError.
    """
    hint = ""
    try:
        with files.opened(path) as file:
            data = file.read(limit + 1)
        if len(data) <= limit:
            return decode(data, label)
        message = f"is larger than {limit >> 20} MiB, the limit"
        if limit == MAX_BYTES:
            message += " for a project file"
            hint = "name the project file"
    except FileNotFoundError:
        message = "there is no such file"
        hint = "`envgen init DIR` writes a starter project"
    except files.NotAFile as error:
        message = reason_of(error)
        if path.is_dir():
            message = "is a folder, not a file"
            hint = "name the file in it"
    except OSError as error:
        message = f"cannot be read: {reason_of(error).lower()}"
    raise ProjectError([Problem(message, Place(label), hint)])


def decode(data: bytes, label: str) -> str:
    """UTF-8 text of ``data``, its byte order mark removed. Raises ProjectError with the byte's line."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        message = f"is not UTF-8 text: byte {error.object[error.start]:#04x}"
        problem = Problem(message, Place(label, line, 1), "save the file as UTF-8")
    raise ProjectError([problem])
