"""Binds JSON to frozen dataclasses. Rejects answers of containers that do not have their shape."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import types
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")
JsonObject = Mapping[str, Any]  # an object of JSON or YAML that is only read
JsonDict = dict[str, Any]  # one that is made or changed
Reader = Callable[[Any, str], Any]  # (data, its key) -> the value
LIMIT = 1 << 63  # of numbers; JSON may have 1e999


class ShapeError(ValueError):
    """The document does not have the expected shape. The message names the key."""


def bind(kind: type[T], data: Any, where: str = "") -> T:
    """A ``kind`` from parsed JSON. Ignores unknown keys. Raises ShapeError for wrong types."""
    if not isinstance(data, Mapping):
        raise ShapeError(f"{where or 'the document'} is not an object")
    values = {}
    for name, read, required in _fields(cast(Any, kind)):
        if name in data:
            values[name] = read(data[name], f"{where}.{name}".lstrip("."))
        elif required:
            raise ShapeError(f"{where}.{name} is missing".lstrip("."))
    return kind(**values)


@cache
def _fields(kind: Any) -> tuple[tuple[str, Reader, bool], ...]:
    """(name, reader, whether it is required) of each field."""
    hints = get_type_hints(kind)
    return tuple(
        (
            field.name,
            _reader(hints[field.name]),
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
        )
        for field in dataclasses.fields(kind)
    )


def _reader(hint: Any) -> Reader:
    if hint is Any:
        return lambda data, _where: data
    if dataclasses.is_dataclass(hint):
        kind: Any = hint
        return lambda data, where: bind(kind, data, where)
    origin = get_origin(hint)
    args = get_args(hint)
    if origin in (tuple, frozenset, list):
        return _list_of(_reader(args[0]), origin)
    if origin in (Union, types.UnionType):
        inner = _reader(next(arg for arg in args if arg is not type(None)))
        return lambda data, where: None if data is None else inner(data, where)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping_of(_reader(args[1]))
    return _text if hint is str else _number(hint)


def _list_of(item: Reader, kind: type) -> Reader:
    def read(data: Any, where: str) -> Any:
        if not isinstance(data, list):
            raise ShapeError(f"{where} is not a list")
        return kind(item(entry, where) for entry in data)

    return read


def _mapping_of(item: Reader) -> Reader:
    def read(data: Any, where: str) -> Any:
        if not isinstance(data, Mapping):
            raise ShapeError(f"{where} is not an object")
        return {_text(key, where): item(value, f"{where}.{key}") for key, value in data.items()}

    return read


def _text(data: Any, where: str) -> str:
    """Text without lone surrogates, which file names may have."""
    if not isinstance(data, str):
        raise ShapeError(f"{where} is not str")
    return data.encode("utf-8", "backslashreplace").decode()


def _number(kind: Any) -> Reader:
    def read(data: Any, where: str) -> Any:
        if kind is float and type(data) is int and abs(data) < LIMIT:
            data = float(data)
        # A bool is not a number.
        if type(data) is kind and abs(data) < LIMIT:
            return data
        raise ShapeError(f"{where} is not {kind.__name__}")

    return read


def digest_of(format_: int, document: Mapping[str, Any]) -> str:
    """SHA-256 over canonical JSON, for labels. Raise ``format_`` to change all digests."""
    text = json.dumps(
        {**document, "format": format_}, sort_keys=True, separators=(",", ":"), ensure_ascii=True
    )
    return hashlib.sha256(text.encode("ascii")).hexdigest()
