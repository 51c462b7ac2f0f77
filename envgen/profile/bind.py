"""A merged tree -> frozen records of the model, with every problem collected on the way.

Nothing stops at the first problem. Where a value is wrong, the field's default (or a harmless stand-in) takes its
place, so that semantic checks can still look at all the rest; ``Binding.broken`` tells them what they must not judge.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any

from envgen.errors import Place, Problem
from envgen.profile import hints
from envgen.profile import shape as shapes
from envgen.profile.model import Variant
from envgen.profile.overrides import join_path
from envgen.profile.patterns import ENV_NAME, matches, meaning
from envgen.profile.shape import Field, Shape, fields_of
from envgen.profile.tree import BOOL, FLOAT, INT, LIST, MAP, NULL, TEXT, Node, near, overlay, written
from envgen.profile.values import plain_text

_INTEGER_DIGITS = 15
_WRONG: Any = object()


class Binding:
    """Collects problems, and which paths are broken, while one profile is bound."""

    def __init__(self, *, partial: bool = False, overlay: bool = False) -> None:
        self.partial = partial  # what it extends is unknown, so nothing can be said to be missing
        self.overlay = overlay  # it will be merged into something else, where null removes
        self.problems: list[Problem] = []
        self.broken: set[str] = set()

    def report(self, message: str, place: Place, hint: str = "") -> None:
        """Note a problem; its key path counts as broken."""
        self.problems.append(Problem(message, place, hint))
        self.broken.add(place.key)

    def wrong(self, node: Node, path: str, message: str, hint: str = "") -> Any:
        """Note that the value at ``node`` is wrong."""
        self.problems.append(Problem(message, node.place(path), hint))
        self.broken.add(path)
        return _WRONG

    # --- records ---------------------------------------------------------------------------------------------------

    def record(self, cls: Any, node: Node, path: str, **given: Any) -> Any:
        """The record of class ``cls`` at ``node``; ``given`` are fields that no file sets."""
        values: dict[str, Any] = dict(given)
        fields = fields_of(cls)
        if node.kind != MAP:
            hint = hints.text_for_record(cls, node.kind)
            self.wrong(node, path, f"expected a mapping, found {node.seen()}", hint)
            node = node.with_items({})
        else:
            for name, child in node.items.items():
                field = fields.get(name)
                if field is None:
                    self.unknown(child, name, path, list(fields), hints.COMPOSE.get(cls.__name__, {}))
                elif child.kind != NULL:
                    value = self.field(field, child, f"{path}.{name}" if path else name)
                    if value is not _WRONG:
                        values[name] = value
            for name, field in fields.items():
                if field.required and (name not in node.items or node.items[name].kind == NULL):
                    key = f"{path}.{name}" if path else name
                    self.broken.add(key)
                    if not self.partial:
                        self.report("is required", node.key_place(key), hints.required(field))
        for name, field in fields.items():
            if field.required and name not in values:
                values[name] = _stand_in(field.shape)
        return cls(**values)

    def variant(self, node: Node, path: str) -> Variant:
        """The variant at ``node``; nothing in it is required."""
        inner = Binding(partial=True, overlay=True)
        bound: Variant = inner.record(Variant, node, path, changes=MappingProxyType({}))
        self.problems += inner.problems
        if inner.problems:
            self.broken.add(path)
        changed = written(overlay(node)) if node.kind == MAP else ()
        changes = MappingProxyType({join_path(where): text for where, text, _ in changed})
        return Variant(changes=changes, description=bound.description)

    def unknown(
        self, child: Node, name: str, path: str, known: list[str], compose: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Note an unknown key, with what stands for Compose's key of that name, or the nearest known one."""
        key = f"{path}.{name}" if path else name
        self.report("unknown key", child.key_place(key), compose.get(name) or near(name, known))

    def field(self, field: Field, node: Node, path: str) -> Any:
        """The value of one field."""
        key = field.key
        value = self.value(field.shape, node, path, item=key.item, names=key.names)
        if value is _WRONG or type(value) is not int:
            return value
        if (key.low is not None and value < key.low) or (key.high is not None and value > key.high):
            if key.high is None:
                return self.wrong(node, path, f"{value} is too small; the least is {key.low}")
            return self.wrong(node, path, f"{value} is out of range ({key.low} to {key.high})")
        return value

    # --- values ----------------------------------------------------------------------------------------------------

    def value(self, shape: Shape, node: Node, path: str, *, item: str = "", names: str = "") -> Any:
        """The value of any shape at ``node``."""
        kind = shape.kind
        if kind == shapes.SCALAR:
            return self.scalar(shape.type, node, path, item)
        if kind == shapes.VALUE:
            return self.value_type(shape.type, node, path)
        if kind == shapes.RECORD:
            return self.variant(node, path) if shape.type is Variant else self.record(shape.type, node, path)
        if kind == shapes.MAPPING:
            return self.mapping(shape, node, path, item, names)
        if kind == shapes.SEQUENCE:
            return self.sequence(shape, node, path, item)
        if kind == shapes.ENUM:
            return self.enum(shape.type, node, path)
        return self.argument(node, path)

    def scalar(self, type_: type, node: Node, path: str, pattern: str) -> Any:
        if type_ is bool:
            if node.kind != BOOL:
                hint = "YAML 1.2 knows only true and false" if node.text.lower() in ("yes", "no", "on", "off") else ""
                return self.wrong(node, path, f"expected true or false, found {node.seen()}", hint)
            return node.text[0] in "tT"
        if type_ is int:
            if node.kind != INT or not _is_decimal(node.text):
                return self.wrong(node, path, f"expected a whole number, found {node.seen()}")
            if len(node.text) > _INTEGER_DIGITS:
                return self.wrong(node, path, f"{node.text[:20]}... is too large")
            return int(node.text)
        if node.kind != TEXT:
            hint = f'quote it: "{node.text}"' if node.kind in (INT, FLOAT, BOOL) else ""
            return self.wrong(node, path, f"expected text, found {node.seen()}", hint)
        return self.text(node, path, pattern)

    def text(self, node: Node, path: str, pattern: str) -> Any:
        """Text that any rendered language can carry, and that matches ``pattern``."""
        text = node.text
        try:
            plain_text(text)
        except ValueError as error:
            return self.wrong(node, path, str(error), hints.one_line(text, path))
        if pattern and not matches(pattern, text):
            return self.wrong(node, path, f"{_short(text)} is not accepted here", meaning(pattern))
        return text

    def value_type(self, type_: Any, node: Node, path: str) -> Any:
        if node.kind != TEXT and node.kind != getattr(type_, "NUMBER", ""):
            if node.kind in (INT, FLOAT):
                message = f"expected text such as {type_.EXAMPLE}, found {node.seen()}"
                return self.wrong(node, path, message, hints.for_number(type_, node.text))
            return self.wrong(node, path, f"expected text such as {type_.EXAMPLE}, found {node.seen()}")
        try:
            return type_.parse(plain_text(node.text))
        except ValueError as error:
            return self.wrong(node, path, str(error))

    def enum(self, type_: type[Enum], node: Node, path: str) -> Any:
        for member in type_:
            if member.value == node.text and node.kind not in (MAP, LIST):
                return member
        known = [str(member.value) for member in type_]
        message = f"expected one of {', '.join(known)}; found {node.seen()}"
        return self.wrong(node, path, message, _like(node.text, known))

    def sequence(self, shape: Shape, node: Node, path: str, item: str) -> Any:
        assert shape.inner is not None
        if node.kind != LIST:
            hint = hints.as_list(shape.inner, node.text, path) if node.kind not in (MAP, NULL) else ""
            return self.wrong(node, path, f"expected a list, found {node.seen()}", hint)
        found = [self.value(shape.inner, child, f"{path}[{i}]", item=item) for i, child in enumerate(node.elements)]
        return tuple([value for value in found if value is not _WRONG])

    def mapping(self, shape: Shape, node: Node, path: str, item: str, names: str) -> Any:
        if node.kind != MAP:
            hint = hints.list_for_mapping(shape.inner, node) if node.kind == LIST else ""
            return self.wrong(node, path, f"expected a mapping, found {node.seen()}", hint)
        inner = shape.inner
        assert inner is not None
        nested = inner.inner if inner.kind == shapes.MAPPING else None
        texts = inner.type is str
        values: dict[str, Any] = {}
        for name, child in node.items.items():
            key = f"{path}.{name}" if path else name
            if names and not matches(names, name):
                message = f"{_short(name)} is not a name that can stand here"
                self.report(message, child.key_place(key), meaning(names))
                continue
            if child.kind == NULL and (self.overlay or not texts):
                continue
            if texts:
                value = self.source_text(child, key)
            elif nested is not None:
                value = self.mapping(inner, child, key, item, ENV_NAME)
            else:
                value = self.value(inner, child, key, item=item)
            if value is not _WRONG:
                values[name] = value
        return MappingProxyType(values)

    def source_text(self, node: Node, path: str) -> Any:
        """The value of a variable: the text as it is in the file, so that 0.70 stays 0.70."""
        if node.kind == NULL:
            return self.wrong(node, path, "has no value", 'write "" for an empty text')
        if node.kind in (MAP, LIST):
            return self.wrong(node, path, f"expected text, found {node.seen()}", "quote it to pass it on as text")
        return self.text(node, path, "")

    # --- command-line arguments ------------------------------------------------------------------------------------

    def argument(self, node: Node, path: str) -> Any:
        if node.kind == BOOL:
            return node.text[0] in "tT"
        if node.kind == LIST:
            if not node.items:
                return self.wrong(node, path, "is an empty list", "write true for a bare flag")
            words = [self.source_text(child, f"{path}[{i}]") for i, child in enumerate(node.elements)]
            return _WRONG if any(word is _WRONG for word in words) else tuple(words)
        if node.kind == MAP:
            before = len(self.problems)
            document = self.json_value(node, path)
            if len(self.problems) > before:
                return _WRONG
            return json.dumps(document, separators=(",", ":"), ensure_ascii=False)
        return self.source_text(node, path)

    def json_value(self, node: Node, path: str) -> Any:
        """What a mapping in ``args`` means as JSON."""
        if node.kind == MAP:
            return {
                self._json_key(child, name, path): self.json_value(child, f"{path}.{name}")
                for name, child in node.items.items()
            }
        if node.kind == LIST:
            return [self.json_value(child, f"{path}[{i}]") for i, child in enumerate(node.elements)]
        if node.kind == NULL:
            return None
        if node.kind == BOOL:
            return node.text[0] in "tT"
        if node.kind in (INT, FLOAT):
            try:
                number = json.loads(node.text) if len(node.text) <= 30 else None
            except ValueError:
                number = None
            if number is None or not math.isfinite(number):
                return self.wrong(node, path, f"{_short(node.text)} is not a number that JSON can carry", "quote it")
            return number
        return self.text(node, path, "")

    def _json_key(self, child: Node, name: str, path: str) -> str:
        try:
            return plain_text(name)
        except ValueError as error:
            self.report(f"the key {_short(name)} {error}", child.key_place(path))
            return name


def _is_decimal(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and (digits[0] != "0" or digits == "0")


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _like(text: str, known: list[str]) -> str:
    hint = near(text, known)
    return hint if hint.startswith("did you") else ""


def _stand_in(shape: Shape) -> Any:
    """Something of the right type for a required field whose value is missing or wrong."""
    if shape.kind == shapes.SCALAR:
        return shape.type()
    if shape.kind == shapes.VALUE:
        return shape.type.parse(shape.type.EXAMPLE)
    if shape.kind == shapes.ENUM:
        return next(iter(shape.type))
    if shape.kind == shapes.RECORD:
        fields = fields_of(shape.type)
        return shape.type(**{name: _stand_in(field.shape) for name, field in fields.items() if field.required})
    empty: Mapping[str, Any] | tuple[()] = MappingProxyType({}) if shape.kind == shapes.MAPPING else ()
    return empty
