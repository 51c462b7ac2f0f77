"""What to write instead of a value that is refused: each hint is accepted when it is followed."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

from envgen.profile import shape as shapes
from envgen.profile.shape import Field, Shape, fields_of
from envgen.profile.tree import TEXT, plain_kind

_PLAIN = re.compile(r"[A-Za-z0-9_./=@+-]+")
_SHELL = re.compile(r"[&|;<>`$*()]")


def spelled(text: str) -> str:
    """``text`` as YAML reads it back, also inside a list."""
    plain = _PLAIN.fullmatch(text) and plain_kind(text) == TEXT and not text.startswith("-")
    return text if plain else json.dumps(text, ensure_ascii=False)


def for_number(type_: Any, text: str) -> str:
    """How a number is written where a value such as 127.0.0.1:8000:8000 or 30s is expected."""
    for value in (text, f"127.0.0.1:{text}:{text}", f"{text}s"):
        try:
            type_.parse(value)
        except ValueError:
            continue
        return f"quote it: {spelled(value)}" if value == text else f"write {spelled(value)}"
    return f"write it like {type_.EXAMPLE}"


def is_command(path: str) -> bool:
    """Whether the value at ``path`` is a command, one word an item."""
    return re.search(r"(^|\.)(command|prepare)(\[\d+\])?$", path) is not None


def as_list(inner: Shape, text: str, path: str) -> str:
    """``text`` as the list that was expected: the words of a command, else one item."""
    items = [text]
    if is_command(path):
        try:
            items = ["sh", "-c", text] if _SHELL.search(text) else shlex.split(text)
        except ValueError:  # a quote that is never closed
            return "write it as a list, one word an item"
    elif inner.kind == shapes.VALUE and plain_kind(text) != TEXT:
        return for_number(inner.type, text).replace("write ", "write it as a list: [") + "]"
    return f"write it as a list: [{', '.join(map(spelled, items))}]"


def one_line(text: str, path: str) -> str:
    """For a value with a line break."""
    if "\n" not in text:
        return ""
    return "separate the commands by `; `, or put them into a script" if is_command(path) else "write it in one line"


def required(field: Field) -> str:
    """What to write for a key that is missing: its own required keys with an example each, else what it is."""
    if field.shape.kind != shapes.RECORD:
        return field.key.doc
    inner = [one for one in fields_of(field.shape.type).values() if one.required]
    return f"write `{field.name}: {{{', '.join(f'{one.name}: {_example(one)}' for one in inner)}}}`"


def _example(field: Field) -> str:
    return str(field.shape.type.EXAMPLE) if field.shape.kind == shapes.VALUE else "..."
