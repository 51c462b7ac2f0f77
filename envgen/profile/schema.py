"""The JSON Schema of a project file, generated from the model, and the values of a profile as plain
data.

The schema is for single files, before layers are merged: a required key may come from `defaults`,
and `null` removes the value of a weaker layer. So nothing below the top is required, and every key
may be null.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from envgen.binding import JsonDict
from envgen.errors import Place
from envgen.profile import shape as shapes
from envgen.profile.model import LocalFile, Profile, ProjectFile, Variant
from envgen.profile.shape import NAME, Field, Shape, fields_of
from envgen.profile.tree import DEFAULT, MAP, NULL, YamlNode, join_path, written

FILE_NAME = "envgen.schema.json"
NO_CONTROL = r"^[^\x00-\x1f\x7f]*$"

Schema = JsonDict


def project_schema() -> Schema:
    """The schema of envgen.yaml (and of envgen.local.yaml, except for required keys)."""
    definitions: Schema = {}
    for cls in (ProjectFile, LocalFile):
        _definition(cls, definitions)
    file = definitions.pop("ProjectFile")
    del definitions["LocalFile"]
    definitions["Profile"]["properties"]["extends"] = {
        "type": ["string", "null"],
        "pattern": _whole(NAME),
        "description": "The profile that this one changes.",
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:envgen:project-file:1",  # ends with the version of the format
        "title": "envgen project file",
        **file,
        "required": ["version", "name", "profiles"],
        "patternProperties": {
            "^x-": {"description": "Ignored: a place for anchors, as in Compose."}
        },
        "$defs": dict(sorted(definitions.items())),
    }


def text() -> str:
    """The schema as the text of its file."""
    return json.dumps(project_schema(), indent=2, ensure_ascii=False) + "\n"


def _whole(pattern: str) -> str:
    return f"^(?:{pattern})$"


def _nullable(schema: Schema) -> Schema:
    """``schema`` or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def _definition(cls: Any, definitions: Schema) -> Schema:
    """A reference to the definition of a record class."""
    name = cls.__name__
    if name not in definitions:
        definitions[name] = {}
        properties = {key: _field(field, definitions) for key, field in fields_of(cls).items()}
        definitions[name] = {
            "type": "object",
            "additionalProperties": False,
            "properties": properties,
        }
    return {"$ref": f"#/$defs/{name}"}


def _field(field: Field, definitions: Schema) -> Schema:
    key = field.key
    schema = _nullable(_shape(field.shape, key.item, key.names, definitions))
    schema["description"] = key.doc
    if key.low is not None:
        schema["minimum"] = key.low
    if key.high is not None:
        schema["maximum"] = key.high
    if not field.required and field.shape.kind != shapes.RECORD and field.default not in (None, ()):
        default = plain(field.default)
        if default != {}:
            schema["default"] = default
    return schema


def _shape(shape: Shape, item: str, names: str, definitions: Schema) -> Schema:
    if shape.kind == shapes.RECORD:
        record = _definition(shape.type, definitions)
        if short := getattr(shape.type, "TEXT", ""):
            return {"anyOf": [record, {"type": "string", "pattern": _whole(short)}]}
        return record
    if shape.kind == shapes.ENUM:
        members: type[Enum] = shape.type
        return {"enum": [member.value for member in members]}
    if shape.kind == shapes.VALUE:
        return _value_type(shape.type)
    if shape.kind == shapes.SCALAR:
        if shape.type is str:
            return {"type": "string", "pattern": _whole(item) if item else NO_CONTROL}
        return {"type": "integer" if shape.type is int else "boolean"}
    if shape.kind == shapes.ARG:
        words = {"type": "array", "minItems": 1, "items": _SOURCE_TEXT}
        return {"anyOf": [_SOURCE_TEXT, words, {"type": "object"}]}
    assert shape.inner is not None
    if shape.kind == shapes.SEQUENCE:
        return {"type": "array", "items": _shape(shape.inner, item, "", definitions)}
    return _mapping(shape.inner, names, definitions)


def _mapping(inner: Shape, names: str, definitions: Schema) -> Schema:
    if inner.type is str:
        values = _SOURCE_TEXT
    else:
        values = _shape(inner, "", "", definitions)
        if inner.type is int:  # limits, as Compose writes them, too
            both = {"type": "object", "required": ["soft", "hard"]}
            values = {
                "anyOf": [values, {**both, "properties": dict.fromkeys(both["required"], values)}]
            }
    schema = {"type": "object", "additionalProperties": _nullable(values)}
    if names:
        schema["propertyNames"] = {"pattern": _whole(names)}
    return schema


# Numbers keep the spelling of the file: 0.70 stays 0.70.
_SOURCE_TEXT: Schema = {"type": ["string", "number", "boolean"], "pattern": NO_CONTROL}


def _value_type(type_: Any) -> Schema:
    schema = {"type": "string", "pattern": type_.PATTERN, "examples": [type_.EXAMPLE]}
    number = getattr(type_, "NUMBER", "")
    if number:
        schema["type"] = ["string", {"int": "integer", "float": "number"}[number]]
    limits = getattr(type_, "RANGE", ())
    schema |= zip(("minimum", "maximum"), limits, strict=False)
    return schema


@dataclass(frozen=True)
class Value:
    """One value. ``layer``: project, local, environment, set or default; a default has no place."""

    key: str
    value: Any
    layer: str
    place: Place | None


def plain(value: Any) -> Any:
    """``value`` of the model as JSON."""
    if value is None or isinstance(value, (str, int)):
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
    if fields := fields_of(kind):
        return {name: plain(getattr(value, name)) for name in fields}
    return str(value)


def flat(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(path, value) of each value that is no mapping, or an empty one, in what ``plain`` made."""
    if isinstance(value, dict) and value:
        for name, item in value.items():
            yield from flat(item, (*path, name))
    else:
        yield path, value


def values(profile: Profile, tree: YamlNode) -> Iterator[Value]:
    """Every value of ``profile`` with its origin; ``tree`` is what it was bound from."""
    for path, value in flat(plain(profile)):
        node = tree.at(path)
        if path[0] == "variants" and path[1:]:
            continue
        if node is None or node.kind == NULL or node.source.layer == DEFAULT:
            yield Value(join_path(path), value, DEFAULT, None)
            continue
        if node.kind == MAP:  # of a flag written as a mapping: the changed part
            leaves = [leaf for _, _, leaf in written(node)]
            changed = (leaf for leaf in leaves if leaf.source is not node.source)
            node = next(changed, node)
        yield Value(join_path(path), value, node.source.layer, node.place())
    variants = tree.at(("variants",))
    if profile.variants and variants is not None:
        for where, text, leaf in written(variants, ("variants",)):
            yield Value(join_path(where), text, leaf.source.layer, leaf.place())
