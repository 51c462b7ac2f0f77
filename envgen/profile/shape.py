"""What each field of the model accepts, read from its annotation: the one source of binding, JSON Schema and docs.

Annotations are strings (``from __future__ import annotations``) in a small language: a name, ``tuple[X, ...]``,
``Mapping[str, X]`` and ``| None``. Reading them here costs microseconds, where ``typing.get_type_hints`` compiles and
evaluates each one.
"""

from __future__ import annotations

from dataclasses import MISSING
from enum import Enum
from typing import Any

from envgen.profile import model, values
from envgen.profile.keys import Key, keys_of

SCALAR, ENUM, VALUE, RECORD, SEQUENCE, MAPPING, ARG = "scalar", "enum", "value", "record", "sequence", "mapping", "arg"


class Shape:
    """What a place in the file accepts."""

    __slots__ = ("inner", "kind", "type")

    def __init__(self, kind: str, type_: Any = None, inner: Shape | None = None) -> None:
        self.kind = kind
        self.type = type_  # str, int or bool; an Enum; a value type; a record class
        self.inner = inner  # of a sequence's items, of a mapping's values


class Field:
    """One key of a record."""

    __slots__ = ("default", "key", "name", "optional", "required", "shape")

    def __init__(self, name: str, shape: Shape, optional: bool, key: Key, default: Any) -> None:
        self.name = name
        self.shape = shape
        self.optional = optional  # None is a value of the field
        self.key = key
        self.default = default
        self.required = default is MISSING


_SCALARS = {"str": str, "int": int, "bool": bool}
_fields: dict[type, dict[str, Field]] = {}


def fields_of(cls: type) -> dict[str, Field]:
    """The keys of a record class that a file may set, by name."""
    found = _fields.get(cls)
    if found is None:
        found = {}
        for name, (key, field) in keys_of(cls).items():
            text = str(field.type)
            optional = text.endswith(" | None")
            default = field.default if field.default_factory is MISSING else field.default_factory()
            found[name] = Field(name, _shape(text.removesuffix(" | None")), optional, key, default)
        _fields[cls] = found
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
