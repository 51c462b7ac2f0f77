"""build.ninja, read as ninja reads it, as far as paths go: escapes, continuations, variables, build lines."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List

_NAME = re.compile(r"[\w.-]+", re.ASCII)
_TOKEN = re.compile(
    r"(?P<space>[ \t]+)|(?P<mark>:|\|[|@]?)|\$(?P<escaped>[ :$])|\$\{(?P<braced>[\w.-]+)\}|\$(?P<named>[\w-]+)"
    r"|(?P<text>[^ \t:|$]+)",
    re.ASCII,
)


@dataclass
class Edge:
    """One ``build`` line."""

    outputs: List[str]
    rule: str
    inputs: List[str]


def logical_lines(text: str) -> list[str]:
    """The lines with ``$`` + newline joined. ``$$`` is consumed first, so ``$$`` before a newline joins nothing."""
    lines: list[str] = []
    held = ""
    for line in text.split("\n"):
        if line.endswith("\r"):
            line = line[:-1]
        if held:
            line = held + line.lstrip(" \t")
            held = ""
        dollars = len(line) - len(line.rstrip("$"))
        if dollars % 2:
            held = line[:-1]
            # What is joined may be empty so far, but it is still a continuation.
            held = held or " "
        else:
            lines.append(line)
    return [*lines, held] if held else lines


def words(text: str, variables: dict[str, str]) -> list[tuple[str, bool]]:
    """Split into paths and marks: ``(text, is_mark)``. A variable's value stays part of its word, spaces and all."""
    found: list[tuple[str, bool]] = []
    word: list[str] | None = None
    for kind, value in _tokens(text, variables):
        if kind == "text":
            word = [*word, value] if word is not None else [value]
            continue
        if word is not None:
            found.append(("".join(word), False))
            word = None
        if kind == "mark":
            found.append((value, True))
    if word is not None:
        found.append(("".join(word), False))
    return found


def expand(text: str, variables: dict[str, str]) -> str:
    """The value of a binding: escapes and variables resolved, spaces kept."""
    try:
        return "".join(value for _, value in _tokens(text, variables))
    except ValueError:
        return text


def _tokens(text: str, variables: dict[str, str]) -> list[tuple[str, str]]:
    """``(kind, value)``: text, space or mark (``:``, ``|``, ``||``, ``|@``). ValueError: a ``$`` that means nothing."""
    found = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError("a lone $")
        kind = str(match.lastgroup)
        value = variables.get(match[kind], "") if kind in ("braced", "named") else match[kind]
        found.append((kind if kind in ("space", "mark") else "text", value))
        position = match.end()
    return found


def parse(text: str, variables: dict[str, str] | None = None) -> tuple[list[Edge], bool]:
    """All build lines, and whether every line could be understood; the file's variables are put into ``variables``.

    A damaged line is skipped, never fatal.
    """
    variables = {} if variables is None else variables
    edges: list[Edge] = []
    whole = True
    for line in logical_lines(text):
        if not line.strip() or line[0] in " \t#":
            continue  # indented lines bind variables of one rule or edge: commands and flags, not paths
        if line.startswith("build "):
            edge = _edge(line[6:], variables)
            edges += [edge] if edge is not None else []
            whole = whole and edge is not None
            continue
        if line.startswith(("rule ", "default ", "pool ", "subninja ", "include ")):
            continue
        name, equals, value = line.partition("=")
        name = name.rstrip(" \t")
        if equals and name and _NAME.fullmatch(name):
            variables[name] = expand(value.lstrip(" \t"), variables)
        else:
            whole = False
    return edges, whole


def _edge(text: str, variables: dict[str, str]) -> Edge | None:
    try:
        found = words(text, variables)
        colon = found.index((":", True))
    except ValueError:
        return None
    outputs = [word for word, is_mark in found[:colon] if not is_mark]
    rest = [word for word, is_mark in found[colon + 1 :] if not is_mark]
    if not outputs or not rest:
        return None
    return Edge(outputs, rest[0], rest[1:])


def quote(path: str) -> str:
    """A path as a build line spells it."""
    return path.replace("$", "$$").replace(" ", "$ ").replace(":", "$:")
