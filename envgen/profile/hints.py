"""What a hint says of a key or a value that is wrong: the line that works."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping

from envgen.profile import shape as shapes
from envgen.profile import tree as nodes
from envgen.profile.model import LocalFile, Profile, ProjectFile
from envgen.profile.names import NAMES
from envgen.profile.service import Mount, Service
from envgen.profile.shape import Field, Shape, fields_of
from envgen.profile.tree import YamlNode, plain_kind, suggestion

_PLAIN = re.compile(r"[A-Za-z0-9_./=@+-]+")
_SHELL = re.compile(r"[&|;<>`$*()]")


COMPOSE: Mapping[str, str] = NAMES["compose_keys"]
# Records whose keys people write in the wrong place, and the hint.
_PLACES: tuple[tuple[type, str], ...] = (
    (Profile, "it belongs to the profile"),
    (Service, "it belongs in a service: `services: {{NAME: {{{}: ...}}}}`"),
    *(
        (field.shape.type, f"it belongs below `{name}`")
        for name, field in fields_of(Profile).items()
        if field.shape.kind == shapes.RECORD
    ),
)


def unknown(cls: type, name: str, node: YamlNode, path: str) -> str:
    """The hint for a key that ``cls`` does not have: its name here, where it belongs, or a similar
    key.

    ``node``: its value; ``path``: of the record.
    """
    fields = fields_of(cls)
    if cls in (ProjectFile, LocalFile) and name in fields_of(Profile):
        return "it belongs below `defaults:` or below a profile"
    if name in COMPOSE:
        return COMPOSE[name]
    if cls is Service and name == "memory" and node.kind != nodes.MAP:
        name = "mem_limit"  # Compose's; `memory` of a profile is another thing
    place = next(
        (place for record, place in _PLACES if record is not cls and name in fields_of(record)), ""
    )
    if place:
        return place.format(name)
    similar = suggestion(name, list(fields))
    if cls is not Service or similar.startswith("did"):
        return similar
    line = f"services: {{{path.rpartition('.')[2]}: {{{name}: ...}}}}"
    return f"a key of Compose: write `compose: over.yaml` in the profile, and into the file over.yaml: {line}"


def list_for_mapping(inner: Shape, node: YamlNode) -> str:
    """The hint for a list, as in Compose, where entries have names here."""
    texts = [child.text for child in node.elements if child.kind == nodes.TEXT]
    if inner.type is Mount and texts:
        return f"give each a name: {{first: {yaml_literal(texts[0])}}}"
    if inner.type is str and (text := pairs(node)):
        return f"write it as a mapping: {{{text}}}"
    return ""


def pairs(node: YamlNode) -> str:
    """A list of NAME=VALUE as the items of a mapping; "" for any other list."""
    items = []
    for child in node.elements:
        if child.kind == nodes.TEXT:
            name, is_pair, value = child.text.partition("=")
            if not is_pair:
                return ""
            items.append(f"{yaml_literal(name)}: {yaml_literal(value)}")
    return ", ".join(items)


def yaml_literal(text: str) -> str:
    """``text`` as YAML reads it back, also inside a list."""
    plain = _PLAIN.fullmatch(text) and plain_kind(text) == nodes.TEXT and not text.startswith("-")
    return text if plain else json.dumps(text, ensure_ascii=False)


def is_command(path: str) -> bool:
    """Whether the value at ``path`` is a command, one word per item."""
    return re.search(r"(^|\.)(command|prepare)(\[\d+\])?$", path) is not None


def as_list(inner: Shape, text: str, path: str) -> str:
    """The hint for ``text`` where a list is expected: the words of a command, else one item."""
    items = [text]
    if is_command(path):
        try:
            items = ["sh", "-c", text] if _SHELL.search(text) else shlex.split(text)
        except ValueError:  # a quote that is never closed
            return "write it as a list, one word per item"
    elif inner.kind == shapes.VALUE and plain_kind(text) != nodes.TEXT:
        items = [inner.type.EXAMPLE]
    return f"write it as a list: [{', '.join(map(yaml_literal, items))}]"


def required(field: Field) -> str:
    """The hint for a missing key: its own required keys with an example each, else its
    documentation.
    """
    if field.shape.kind != shapes.RECORD:
        return field.key.doc
    inner = (key for key in fields_of(field.shape.type).values() if key.required)
    keys = (f"{key.name}: {getattr(key.shape.type, 'EXAMPLE', '...')}" for key in inner)
    return f"write `{field.name}: {{{', '.join(keys)}}}`"
