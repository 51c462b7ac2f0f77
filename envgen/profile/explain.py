"""The values of a profile as plain data, and where each comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from envgen.errors import Place
from envgen.profile import shape as shapes
from envgen.profile.model import Profile, Variant
from envgen.profile.overrides import join_path
from envgen.profile.shape import fields_of
from envgen.profile.tree import DEFAULT, MAP, NULL, Node, written


@dataclass(frozen=True)
class Value:
    """One value. ``layer``: project, local, variant, environment, set or default; a default has no place.

    ``over``: the place of the value that it replaced, and that value where it is one word.
    """

    key: str
    value: Any
    layer: str
    place: Place | None
    over: str = ""


def plain(value: Any) -> Any:
    """``value`` of the model as JSON knows it."""
    if value is None or isinstance(value, (str, int, bool)):
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, Variant):
        return {"description": value.description, "changes": dict(value.changes)}
    kind: Any = type(value)
    if found := fields_of(kind):
        return {name: plain(getattr(value, name)) for name in found}
    return str(value)


def values(profile: Profile, tree: Node) -> Iterator[Value]:
    """Every value of ``profile`` with its origin; ``tree`` is what it was bound from."""
    return _record(profile, tree, ())


def _record(record: Any, node: Node | None, path: tuple[str, ...]) -> Iterator[Value]:
    kind: Any = type(record)
    for name, field in fields_of(kind).items():
        yield from _value(field.shape, getattr(record, name), _below(node, name), (*path, name))


def _value(shape: shapes.Shape, value: Any, node: Node | None, path: tuple[str, ...]) -> Iterator[Value]:
    if isinstance(value, Variant):
        for where, text, leaf in written(node, path) if node is not None else ():
            yield Value(join_path(where), text, leaf.source.layer, leaf.place())
    elif shape.kind == shapes.RECORD and value is not None:
        yield from _record(value, node, path)
    elif shape.kind == shapes.MAPPING and value and shape.inner is not None:
        for name, item in value.items():
            yield from _value(shape.inner, item, _below(node, name), (*path, name))
    else:
        is_written = node is not None and node.kind != NULL and node.source.layer != DEFAULT
        node = _origin(node)
        layer = node.source.layer if is_written and node is not None else DEFAULT
        place = node.place() if is_written and node is not None else None
        below = node.below if is_written and node is not None else None
        over = ", ".join(filter(None, (below.text, str(below.place())))) if below is not None else ""
        yield Value(join_path(path), plain(value), layer, place, over)


def _origin(node: Node | None) -> Node | None:
    """Where a value comes from. Of a flag written as a mapping, of which a part was changed: that part."""
    if node is not None and node.kind == MAP:
        return next((leaf for _, _, leaf in written(node) if leaf.source is not node.source), node)
    return node


def _below(node: Node | None, name: str) -> Node | None:
    return node.items.get(name) if node is not None and node.kind == MAP else None
