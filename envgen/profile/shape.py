"""What each field of the model accepts, read from its annotation: the one source of binding, JSON Schema and docs.

Annotations are strings (``from __future__ import annotations``) in a small language: a name, ``tuple[X, ...]``,
``Mapping[str, X]`` and ``| None``. Reading them here costs microseconds, where ``typing.get_type_hints`` compiles and
evaluates each one.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from enum import Enum
from functools import cache
from typing import Any

from envgen.profile import model, values
from envgen.profile.keys import Key, keys_of

SCALAR, ENUM, VALUE, RECORD, SEQUENCE, MAPPING, ARG = "scalar", "enum", "value", "record", "sequence", "mapping", "arg"


@dataclass(frozen=True, slots=True)
class Shape:
    """What a place in the file accepts."""

    kind: str
    type: Any = None  # str, int or bool; an Enum; a value type; a record class
    inner: Shape | None = None  # of a sequence's items, of a mapping's values


@dataclass(frozen=True, slots=True)
class Field:
    """One key of a record."""

    name: str
    shape: Shape
    key: Key
    default: Any

    @property
    def required(self) -> bool:
        return self.default is MISSING


_SCALARS = {"str": str, "int": int, "bool": bool}


@cache
def fields_of(cls: Any) -> dict[str, Field]:
    """The keys of a record class that a file may set, by name."""
    found = {}
    for name, (key, field) in keys_of(cls).items():
        default = field.default if field.default_factory is MISSING else field.default_factory()
        found[name] = Field(name, _shape(str(field.type).removesuffix(" | None")), key, default)
    return found


def _shape(text: str) -> Shape:
    if text in _SCALARS:
        return Shape(SCALAR, _SCALARS[text])
    if text.startswith("tuple["):
        return Shape(SEQUENCE, inner=_shape(text[len("tuple[") : -len(", ...]")]))
    if text.startswith("Mapping[str, "):
        return Shape(MAPPING, inner=_shape(text[len("Mapping[str, ") : -1]))
    if text == "ArgValue":
        return Shape(ARG)
    found = getattr(values, text, None) or getattr(model, text)
    if isinstance(found, type) and issubclass(found, Enum):
        return Shape(ENUM, found)
    return Shape(RECORD if keys_of(found) else VALUE, found)
