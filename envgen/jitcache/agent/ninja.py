"""build.ninja, read as ninja reads it, as far as paths go: escapes, continuations, variables, build lines."""

from __future__ import annotations

import re

_CONTINUED = re.compile(r"\$(\$|\r?\n[ \t]*)")
_TOKEN = re.compile(
    r"\$(?P<literal>[ :$])|\$\{(?P<braced>[A-Za-z0-9_.-]+)\}|\$(?P<plain>[A-Za-z0-9_-]+)"
    r"|(?P<space>[ \t]+)|(?P<mark>:|\|\||\|@|\|)|(?P<text>[^$ \t:|]+)|(?P<damaged>\$)"
)
_BINDING = re.compile(r"([A-Za-z0-9_.-]+)[ \t]*=[ \t]*(.*)", re.DOTALL)


class Edge:
    """One ``build`` line."""

    __slots__ = ("inputs", "outputs", "rule")

    def __init__(self, outputs: list[str], rule: str, inputs: list[str]) -> None:
        self.outputs = outputs
        self.rule = rule
        self.inputs = inputs


def logical_lines(text: str) -> list[str]:
    """The lines with ``$`` + newline joined. ``$$`` is consumed first, so ``$$`` before a newline joins nothing."""
    joined = _CONTINUED.sub(lambda found: "$$" if found.group(1) == "$" else "", text)
    return [line[:-1] if line.endswith("\r") else line for line in joined.split("\n")]


def words(text: str, variables: dict[str, str]) -> list[tuple[str, bool]]:
    """Split into paths and marks: ``(text, is_mark)``. A variable's value stays part of its word, spaces and all."""
    found: list[tuple[str, bool]] = []
    word: list[str] | None = None
    for token in _TOKEN.finditer(text):
        kind = token.lastgroup
        if kind in ("space", "mark"):
            if word is not None:
                found.append(("".join(word), False))
                word = None
            if kind == "mark":
                found.append((token.group(), True))
            continue
        if kind == "damaged":
            raise ValueError("a lone $")
        value = token.group(kind) if kind else ""
        if kind in ("braced", "plain"):
            value = variables.get(value, "")
        word = [*word, value] if word is not None else [value]
    if word is not None:
        found.append(("".join(word), False))
    return found


def expand(text: str, variables: dict[str, str]) -> str:
    """The value of a binding: escapes and variables resolved, spaces kept."""
    parts = []
    for token in _TOKEN.finditer(text):
        kind = token.lastgroup or "text"
        value = token.group() if kind in ("space", "mark", "damaged") else token.group(kind)
        parts.append(variables.get(value, "") if kind in ("braced", "plain") else value)
    return "".join(parts)


def parse(text: str) -> tuple[list[Edge], bool]:
    """All build lines, and whether every line could be understood. A damaged line is skipped, never fatal."""
    edges: list[Edge] = []
    variables: dict[str, str] = {}
    whole = True
    for line in logical_lines(text):
        if not line.strip() or line[0] in " \t#":
            continue  # indented lines bind variables of one rule or edge: commands and flags, not paths
        if line.startswith("build "):
            edge = _edge(line[6:], variables)
            if edge is None:
                whole = False
            else:
                edges.append(edge)
            continue
        if line.startswith(("rule ", "default ", "pool ", "subninja ", "include ")):
            continue
        binding = _BINDING.match(line)
        if binding:
            variables[binding.group(1)] = expand(binding.group(2), variables)
        else:
            whole = False
    return edges, whole


def _edge(text: str, variables: dict[str, str]) -> Edge | None:
    try:
        found = words(text, variables)
    except ValueError:
        return None
    try:
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
