"""How a field of the model is declared: what ``dataclasses.field`` takes, and what the file format needs besides."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import MISSING
from typing import Any

_KEY = "envgen.key"


@dataclasses.dataclass(frozen=True)
class Key:
    """What a field declares beside its type and default.

    ``names`` = regular expression for the keys of a mapping; ``item`` = for each string of a list (or the string
    itself); ``low`` and ``high`` bound a number.
    """

    doc: str
    names: str = ""
    item: str = ""
    low: int | None = None
    high: int | None = None


def key(doc: str, default: Any = MISSING, **more: Any) -> Any:
    """A documented field that a project file may set; without ``default`` the key is required. ``more``: of Key."""
    metadata = {_KEY: Key(doc, **more)}
    if isinstance(default, Mapping):  # the standard library wants a factory for what can't be hashed
        return dataclasses.field(default_factory=lambda: default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def keys_of(cls: type) -> Mapping[str, tuple[Key, dataclasses.Field[Any]]]:
    """The documented fields of a class by name; empty for a class that has none."""
    if not dataclasses.is_dataclass(cls):
        return {}
    return {field.name: (field.metadata[_KEY], field) for field in dataclasses.fields(cls) if _KEY in field.metadata}
