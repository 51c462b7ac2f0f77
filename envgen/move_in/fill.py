"""Variables in text, as Compose and Dockerfiles write them: ${NAME}, ${NAME:-default}, $$."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

_DOLLAR = "\0"  # stands for one that begins no variable
LONGEST = 100_000  # characters that variables may add to a text
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?:(:?[-?+])([^{}]*))?\}|([A-Za-z_]\w*))")


@dataclass(frozen=True)
class Filled:
    """``defaults``: names whose default was taken; ``missing``: names without one, which stay as ${NAME}."""

    text: str
    defaults: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def fill(text: str, values: Mapping[str, str] = MappingProxyType({})) -> Filled:
    """``text`` with defaults for its variables. No variable of this machine is looked at."""
    defaults: list[str] = []
    missing: list[str] = []
    added = 0

    def one(match: re.Match[str]) -> str:
        nonlocal added
        name, kind, rest = match[1] or match[4], match[2] or "", match[3] or ""
        if name in values and added <= LONGEST:
            made = rest if kind.endswith("+") else values[name]
            added += len(made)
            return made
        if kind.endswith("-"):
            defaults.append(name)
            return rest
        if kind.endswith("+"):
            return ""
        missing.append(name)
        return f"{_DOLLAR}{{{name}}}"

    made = text.replace("$$", _DOLLAR)
    for _ in range(5):  # a default may have variables of its own
        made, count = _VARIABLE.subn(one, made)
        if not count:
            break
    return Filled(made.replace(_DOLLAR, "$"), tuple(defaults), tuple(missing))
