"""Single values from outside the files: ``--set a.b=c`` and ``ENVGEN_A__B=c``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from envgen.errors import Place, Problem
from envgen.profile.model import Profile
from envgen.profile.shape import RECORD, fields_of
from envgen.profile.tree import ENVIRONMENT, SET, Node, Source, scalar
from envgen.profile.values import plain_text
from envgen.profile.yamlparse import parse_value
from envgen.text import shorten

PREFIX = "ENVGEN_"
# Variables of the program itself and of plain `docker compose`; none of them is a key of a profile.
RESERVED = frozenset(("ENVGEN_FILE", "ENVGEN_PROFILE", "ENVGEN_DEBUG", "ENVGEN_UID", "ENVGEN_GID"))


@dataclass(frozen=True)
class Override:
    """One value and the path that it replaces."""

    path: tuple[str, ...]
    node: Node
    from_environment: bool


_PART = r'"(?:[^"]|"")*"|[^."]+'


def split_path(text: str) -> tuple[str, ...]:
    """The parts of ``a.b."c.d"``; in double quotes dots may stand, and doubled quotes. Raises ValueError."""
    if not re.fullmatch(rf"(?:{_PART})(?:\.(?:{_PART}))*", text):
        raise ValueError("a part between the dots is empty, or a double quote has no other")
    parts = re.findall(_PART, text)
    return tuple(part[1:-1].replace('""', '"') if part[0] == '"' else part for part in parts)


def join_path(parts: Iterable[str]) -> str:
    """The spelling that ``split_path`` reads back."""
    return ".".join(_quote(part) for part in parts)


def _quote(part: str) -> str:
    if part and not any(c in part for c in '."='):
        return part
    return '"' + part.replace('"', '""') + '"'


def _split_assignment(text: str) -> tuple[str, str] | None:
    """``key=value`` at the first ``=`` outside double quotes."""
    quoted = False
    for position, char in enumerate(text):
        if char == '"':
            quoted = not quoted
        elif char == "=" and not quoted:
            return text[:position], text[position + 1 :]
    return None


def _value(text: str, source: Source) -> tuple[Node | None, list[Problem]]:
    """The node of an override's text: YAML flow where it begins like one, else one plain scalar."""
    try:
        plain_text(text)
    except ValueError as error:
        return None, [Problem(str(error), Place(source.label))]
    text = text.strip(" ")
    if text[:1] in ("[", "{", '"', "'"):
        source.text = text
        return parse_value(source)
    return scalar(text, source), []


def from_sets(sets: Iterable[str]) -> tuple[list[Override], list[Problem]]:
    """The overrides of ``--set`` options, in order."""
    overrides: list[Override] = []
    problems: list[Problem] = []
    for text in sets:
        split = _split_assignment(text)
        if split is None or not split[0]:
            place = Place(f"--set {shorten(text, 80)}")
            problems.append(Problem("is not an assignment", place, "write it like --set build.max_jobs=4"))
            continue
        name, value = split
        source = Source(f"--set {shorten(name, 80)}", SET)
        try:
            path = split_path(plain_text(name.strip()))
        except ValueError as error:
            problems.append(Problem(f"is not a path: {error}", Place(source.label), "write it like build.max_jobs"))
            continue
        if not value.strip():
            hint = f"{name}=null removes it; {name}='\"\"' is empty text"
            problems.append(Problem("has no value", Place(source.label), hint))
            continue
        node, found = _value(value, source)
        problems += found
        if node is not None and not found:
            overrides.append(Override(path, node, from_environment=False))
    return overrides, problems


def misspelt(environ: Mapping[str, str]) -> list[str]:
    """A sentence for each one-word ``ENVGEN_...`` variable that looks like a key and is none, so has no effect.

    Not ours to refuse: scripts and containers have variables of that name, too.
    """
    keys = {name.removeprefix(PREFIX).lower(): name for name in RESERVED}
    for name, field in fields_of(Profile).items():
        for inner in fields_of(field.shape.type) if field.shape.kind == RECORD else ():
            keys.setdefault(inner, f"{PREFIX}{name.upper()}__{inner.upper()}")
    keys |= {name: f"{PREFIX}{name.upper()}" for name in fields_of(Profile)}
    found = []
    for name in sorted(environ):
        word = name.removeprefix(PREFIX).lower()
        if name.startswith(PREFIX) and "__" not in word and keys.get(word) != name.upper():
            close = [word] if word in keys else difflib.get_close_matches(word, keys, 1, 0.8)
            found += [f"{name} is not a key of a profile and is ignored (did you mean `{keys[one]}`?)" for one in close]
    return found


def from_environ(environ: Mapping[str, str]) -> tuple[list[Override], list[Problem]]:
    """The overrides of ``ENVGEN_...`` variables, sorted by name."""
    overrides: list[Override] = []
    problems: list[Problem] = []
    known = fields_of(Profile)
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name in RESERVED:
            continue
        parts = name[len(PREFIX) :].split("__")
        if parts[0].lower() not in known and len(parts) == 1:
            continue  # no key; see misspelt()
        if not environ[name].strip():
            continue  # Compose's ${NAME:-default} too takes an empty variable for an unset one
        source = Source(name, ENVIRONMENT)
        if not all(parts):
            problems.append(Problem("is not a path", Place(name), "write it like ENVGEN_BUILD__MAX_JOBS"))
            continue
        node, found = _value(environ[name], source)
        problems += found
        if node is not None and not found:
            overrides.append(Override(tuple(parts), node, from_environment=True))
    return overrides, problems
