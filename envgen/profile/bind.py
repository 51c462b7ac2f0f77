"""A merged tree -> frozen records of the model, with every problem collected on the way, and a hint
for each.

Binding does not stop at the first problem. Where a value is wrong, the field's default (or a valid
stand-in) takes its place, so that semantic checks can still run on the rest; ``Binding.broken``
lists the paths that they must not judge.
"""

from __future__ import annotations

import json
import math
import re
from contextlib import suppress
from enum import Enum
from types import MappingProxyType
from typing import Any

from envgen.binding import JsonDict
from envgen.errors import Place, Problem
from envgen.profile import hints
from envgen.profile import shape as shapes
from envgen.profile import tree as nodes
from envgen.profile.model import GpuMode, Machine, Variant
from envgen.profile.shape import (
    NAME,
    Key,
    Shape,
    as_profile_name,
    fields_of,
    matches,
    meaning,
)
from envgen.profile.tree import YamlNode, in_short, join_path, overlay, suggestion, written
from envgen.profile.values import plain_text
from envgen.redact import redact_secrets

_INTEGER_DIGITS = 15
_WRONG: Any = object()
_NO_KEY = Key("")
Path_ = tuple[str | int, ...]
LOCAL_HINT = "{} belongs in envgen.local.yaml, an ENVGEN_... variable or --set"


class Binding:
    """Collects problems, and which paths are broken, while one profile is bound."""

    def __init__(self, *, partial: bool = False) -> None:
        self.partial = (
            partial  # what it extends is unknown, so a key that is not there may not be missing
        )
        self.problems: list[Problem] = []
        self.broken: set[str] = set()

    def report(self, message: str, place: Place, hint: str = "") -> None:
        """Add a problem, and mark its key path as broken."""
        self.problems.append(Problem(message, place, hint))
        self.broken.add(place.key)

    def wrong(self, node: YamlNode, path: str, message: str, hint: str = "") -> Any:
        """Add a problem with the value at ``node``, without a secret in it; returns _WRONG."""
        shown = redact_secrets(node.text)
        if shown != node.text:
            message = message.replace(node.text, shown)
            message = message.replace(repr(node.text)[1:-1], shown)
        self.report(message, node.place(path), hint)
        return _WRONG

    def record(self, cls: Any, node: YamlNode, path: str, **given: Any) -> Any:
        """The record of class ``cls`` at ``node``; ``given`` are fields that no file sets."""
        values: JsonDict = dict(given)
        fields = fields_of(cls)
        if node.kind == nodes.MAP:
            children = node.items
        else:
            children = {}
            hint = ""
            if node.kind == nodes.TEXT and hasattr(cls, "EXAMPLE"):
                hint = f"write it like {cls.EXAMPLE}"
            self.wrong(node, path, f"expected a mapping, found {node.seen()}", hint)
        for name, child in children.items():
            key = below(path, name)
            field = fields.get(name)
            if field is None:
                hint = hints.unknown(cls, name, child, path)
                self.report("unknown key", child.key_place(key), hint)
            elif child.kind != nodes.NULL:
                value = self.value(field.shape, child, key, field.key)
                if value is not _WRONG:
                    values[name] = value
        for name, field in fields.items():
            if not field.required or name in values:
                continue
            values[name] = _stand_in(field.shape)
            key = below(path, name)
            if node.kind == nodes.MAP and key not in self.broken:
                self.broken.add(key)
                if not self.partial:
                    self.report("is required", node.key_place(key), hints.required(field))
        return cls(**values)

    # --- values, by the kind of their shape
    # ------------------------------------------------------------------------

    def value(self, shape: Shape, node: YamlNode, path: str, key: Key = _NO_KEY) -> Any:
        """The value at ``node``; ``key``: the patterns and limits of its field."""
        return getattr(self, f"_{shape.kind}")(shape, node, path, key)

    def _record(self, shape: Shape, node: YamlNode, path: str, _key: Key) -> Any:
        if shape.type is Variant:
            return self._variant(node, path)
        return self.record(shape.type, node, path)

    def _variant(self, node: YamlNode, path: str) -> Variant:
        """The variant at ``node``, in which nothing is required."""
        inner = Binding(partial=True)
        bound: Variant = inner.record(Variant, node, path, changes=MappingProxyType({}))
        self.problems += inner.problems
        if inner.problems:
            self.broken.add(path)
        changes = {}
        if node.kind == nodes.MAP:
            for where, text, _ in written(overlay(node)):
                changes[join_path(where)] = text
        return Variant(changes=MappingProxyType(changes), description=bound.description)

    def _scalar(self, shape: Shape, node: YamlNode, path: str, key: Key) -> Any:
        hint = ""
        if shape.type is bool:
            if node.kind == nodes.BOOL:
                return _is_true(node)
            if node.text.lower() in ("yes", "no", "on", "off"):
                hint = "YAML 1.2 knows only true and false"
            return self.wrong(node, path, f"expected true or false, found {node.seen()}", hint)
        if shape.type is int:
            return self._number(node, path, key)
        if node.kind == nodes.TEXT:
            return self.text(node, path, key.item)
        if node.kind in (nodes.INT, nodes.FLOAT, nodes.BOOL):
            hint = f'quote it: "{node.text}"'
        return self.wrong(node, path, f"expected text, found {node.seen()}", hint)

    def _number(self, node: YamlNode, path: str, key: Key) -> Any:
        if node.kind != nodes.INT or not re.fullmatch(r"-?(0|[1-9][0-9]*)", node.text):
            return self.wrong(node, path, f"expected a whole number, found {node.seen()}")
        if len(node.text) > _INTEGER_DIGITS:
            return self.wrong(node, path, f"{node.text[:20]}... is too large")
        value = int(node.text)
        if key.low is None:
            return value
        if key.high is None:
            if value < key.low:
                reason = f"{value} is too small; the minimum is {key.low}"
                return self.wrong(node, path, reason)
        elif not key.low <= value <= key.high:
            return self.wrong(node, path, f"{value} is out of range ({key.low} to {key.high})")
        return value

    def text(self, node: YamlNode, path: str, pattern: str = "") -> Any:
        """Text that any rendered language can carry, and that matches ``pattern``."""
        text = node.text
        try:
            plain_text(text)
        except ValueError as error:
            hint = ""
            if "\n" in text:
                hint = "write it in one line"
                if hints.is_command(path):
                    hint = "separate the commands by `; `, or put them into a script"
            return self.wrong(node, path, str(error), hint)
        if pattern and not matches(pattern, text):
            return self.wrong(node, path, f"{_short(text)} is not accepted here", meaning(pattern))
        return text

    def _value(self, shape: Shape, node: YamlNode, path: str, _key: Key) -> Any:
        type_ = shape.type
        if node.kind not in (nodes.TEXT, getattr(type_, "NUMBER", nodes.TEXT)):
            message = f"expected text such as {type_.EXAMPLE}, found {node.seen()}"
            return self.wrong(node, path, message)
        try:
            return type_.parse(plain_text(node.text))
        except ValueError as error:
            return self.wrong(node, path, str(error))

    def _enum(self, shape: Shape, node: YamlNode, path: str, _key: Key) -> Any:
        members: type[Enum] = shape.type
        known = {str(member.value): member for member in members}
        is_plain = node.kind not in (nodes.MAP, nodes.LIST)
        if is_plain and node.text in known:
            return known[node.text]
        hint = suggestion(node.text, list(known))
        if not hint.startswith("did you"):
            hint = ""
        if members is GpuMode and not is_plain:
            hint = "for single GPUs, write `gpu: [0]` in a service"
        message = f"expected one of {', '.join(known)}; found {node.seen()}"
        return self.wrong(node, path, message, hint)

    def _sequence(self, shape: Shape, node: YamlNode, path: str, key: Key) -> Any:
        assert shape.inner is not None
        if node.kind != nodes.LIST:
            hint = ""
            if node.kind not in (nodes.MAP, nodes.NULL):
                hint = hints.as_list(shape.inner, node.text, path)
            return self.wrong(node, path, f"expected a list, found {node.seen()}", hint)
        values = []
        for number, child in enumerate(node.elements):
            value = self.value(shape.inner, child, f"{path}[{number}]", key)
            if value is not _WRONG:
                values.append(value)
        return tuple(values)

    def _mapping(self, shape: Shape, node: YamlNode, path: str, key: Key) -> Any:
        inner = shape.inner
        assert inner is not None
        if node.kind != nodes.MAP:
            hint = ""
            if node.kind == nodes.LIST:
                hint = hints.list_for_mapping(inner, node)
            return self.wrong(node, path, f"expected a mapping, found {node.seen()}", hint)
        values = {}
        for name, child in node.items.items():
            if not self._is_entry(inner, node, name, path, key):
                continue
            where = below(path, name)
            if inner.type is str:
                value = self.source_text(child, where)
            else:
                value = self.value(inner, child, where, key)
            if value is not _WRONG:
                values[name] = value
        return MappingProxyType(values)

    def _is_entry(self, inner: Shape, node: YamlNode, name: str, path: str, key: Key) -> bool:
        """Whether ``node`` may have an entry of that name; False for null, too."""
        child = node.items[name]
        place = child.key_place(below(path, name))
        if key.names and not matches(key.names, name):
            hint = meaning(key.names)
            if key.names == NAME and redact_secrets(name) == name:
                hint = f"write {as_profile_name(name)}: {NAME.meaning}"
            self.report(f"{_short(name)} is not a valid name here", place, hint)
            return False
        if _begun_by_override(inner, child):
            others = [other for other in node.items if other != name]
            self.report("does not exist; overrides can't add it", place, suggestion(name, others))
            return False
        return child.kind != nodes.NULL

    def source_text(self, node: YamlNode, path: str) -> Any:
        """The value of a variable, as written in the file: 0.70 stays 0.70."""
        if node.kind == nodes.NULL:
            return self.wrong(node, path, "has no value", 'write "" for an empty text')
        if node.kind in (nodes.MAP, nodes.LIST):
            hint = "quote it if it is JSON; variables of a group are written one level up"
            return self.wrong(node, path, f"expected text, found {node.seen()}", hint)
        return self.text(node, path)

    def _arg(self, _shape: Shape, node: YamlNode, path: str, _key: Key) -> Any:
        """The value of a command-line argument."""
        if node.kind == nodes.BOOL:
            return _is_true(node)
        if node.kind == nodes.LIST:
            if not node.items:
                return self.wrong(node, path, "is an empty list", "write true for a bare flag")
            words = []
            for number, child in enumerate(node.elements):
                words.append(self.source_text(child, f"{path}[{number}]"))
            return _WRONG if any(word is _WRONG for word in words) else tuple(words)
        if node.kind == nodes.MAP:
            before = len(self.problems)
            document = self.json_value(node, path)
            if len(self.problems) > before:
                return _WRONG
            return json.dumps(document, separators=(",", ":"), ensure_ascii=False)
        return self.source_text(node, path)

    def json_value(self, node: YamlNode, path: str) -> Any:
        """A mapping in ``args`` as JSON."""
        if node.kind == nodes.MAP:
            document = {}
            for name, child in node.items.items():
                try:
                    plain_text(name)
                except ValueError as error:
                    self.report(f"the key {_short(name)} {error}", child.key_place(path))
                document[name] = self.json_value(child, f"{path}.{name}")
            return document
        if node.kind == nodes.LIST:
            return [self.json_value(child, f"{path}[{i}]") for i, child in enumerate(node.elements)]
        if node.kind == nodes.NULL:
            return None
        if node.kind == nodes.BOOL:
            return _is_true(node)
        if node.kind not in (nodes.INT, nodes.FLOAT):
            return self.text(node, path)
        number = math.nan
        if len(node.text) <= 30:
            with suppress(ValueError):
                number = json.loads(node.text)
        if math.isfinite(number):
            return number
        message = f"{_short(node.text)} is not a number that JSON can carry"
        return self.wrong(node, path, message, "quote it")


def _is_true(node: YamlNode) -> bool:
    return node.text[0] in "tT"


def _begun_by_override(inner: Shape, node: YamlNode) -> bool:
    """Whether an override names an entry that no profile has: it has none of the keys that an entry
    needs.

    Machines (`nodes`) belong in the local file, and are not overrides there.
    """
    overrides = (nodes.LOCAL, nodes.ENVIRONMENT, nodes.SET)
    if node.source.layer not in overrides or node.kind != nodes.MAP:
        return False
    if inner.kind != shapes.RECORD or inner.type is Machine:
        return False
    required = {name for name, field in fields_of(inner.type).items() if field.required}
    return bool(required) and not required & node.items.keys()


def below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _short(text: str) -> str:
    return repr(in_short(text))


def _stand_in(shape: Shape) -> Any:
    """A valid value for a required field whose own value is missing or wrong."""
    if shape.kind == shapes.SCALAR:
        return shape.type()
    if shape.kind == shapes.VALUE:
        return shape.type.parse(shape.type.EXAMPLE)
    if shape.kind == shapes.ENUM:
        return next(iter(shape.type))
    if shape.kind == shapes.RECORD:
        values = {}
        for name, field in fields_of(shape.type).items():
            if field.required:
                values[name] = _stand_in(field.shape)
        return shape.type(**values)
    return MappingProxyType({}) if shape.kind == shapes.MAPPING else ()
