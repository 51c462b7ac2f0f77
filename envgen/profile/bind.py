"""A merged tree -> frozen records of the model, with every problem collected on the way, and a hint for each.

Binding does not stop at the first problem. Where a value is wrong, the field's default (or a valid stand-in) takes its
place, so that semantic checks can still run on the rest; ``Binding.broken`` lists the paths that they must not judge.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any

from envgen.errors import Place, Problem
from envgen.profile import shape as shapes
from envgen.profile import tree as nodes
from envgen.profile.model import GpuMode, LocalFile, Machine, Mount, Profile, ProjectFile, Service, Source, Variant
from envgen.profile.shape import ENV_NAME, Field, Key, Shape, fields_of, matches, meaning
from envgen.profile.tree import YamlNode, join_path, near, overlay, plain_kind, written
from envgen.profile.values import HostPath, own_path, plain_text
from envgen.redact import redact_secrets

_INTEGER_DIGITS = 15
_WRONG: Any = object()
_NO_KEY = Key("")
_GROUPS = "variables are in groups, each with a name of your own"
Path_ = tuple[str | int, ...]
LOCAL_HINT = "{} belongs in envgen.local.yaml, an ENVGEN_... variable or --set"


class Binding:
    """Collects problems, and which paths are broken, while one profile is bound."""

    def __init__(self, *, partial: bool = False, overlay: bool = False) -> None:
        self.partial = partial  # what it extends is unknown, so a key that is not there may not be missing
        self.overlay = overlay  # it is merged into a profile later, where null removes a value
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
            message = message.replace(node.text, shown).replace(repr(node.text)[1:-1], shown)
        self.report(message, node.place(path), hint)
        return _WRONG

    def record(self, cls: Any, node: YamlNode, path: str, **given: Any) -> Any:
        """The record of class ``cls`` at ``node``; ``given`` are fields that no file sets."""
        values: dict[str, Any] = dict(given)
        fields = fields_of(cls)
        if node.kind != nodes.MAP:
            hint = f"write it like {cls.EXAMPLE}" if node.kind == nodes.TEXT and hasattr(cls, "EXAMPLE") else ""
            self.wrong(node, path, f"expected a mapping, found {node.seen()}", hint)
        for name, child in node.items.items() if node.kind == nodes.MAP else ():
            key = _below(path, name)
            field = fields.get(name)
            if field is None:
                self.report("unknown key", child.key_place(key), _unknown(cls, name, child, path))
            elif child.kind != nodes.NULL:
                value = self.value(field.shape, child, key, field.key)
                if value is not _WRONG:
                    values[name] = value
        for name, field in fields.items():
            if not field.required or name in values:
                continue
            values[name] = _stand_in(field.shape)
            key = _below(path, name)
            if node.kind == nodes.MAP and key not in self.broken:
                self.broken.add(key)
                if not self.partial:
                    self.report("is required", node.key_place(key), _required(field))
        return cls(**values)

    # --- values, by the kind of their shape ------------------------------------------------------------------------

    def value(self, shape: Shape, node: YamlNode, path: str, key: Key = _NO_KEY) -> Any:
        """The value at ``node``; ``key``: the patterns and limits of its field."""
        return getattr(self, f"_{shape.kind}")(shape, node, path, key)

    def _record(self, shape: Shape, node: YamlNode, path: str, _key: Key) -> Any:
        return self._variant(node, path) if shape.type is Variant else self.record(shape.type, node, path)

    def _variant(self, node: YamlNode, path: str) -> Variant:
        """The variant at ``node``, in which nothing is required."""
        inner = Binding(partial=True, overlay=True)
        bound: Variant = inner.record(Variant, node, path, changes=MappingProxyType({}))
        self.problems += inner.problems
        if inner.problems:
            self.broken.add(path)
        changed = written(overlay(node)) if node.kind == nodes.MAP else ()
        changes = MappingProxyType({join_path(where): text for where, text, _ in changed})
        return Variant(changes=changes, description=bound.description)

    def _scalar(self, shape: Shape, node: YamlNode, path: str, key: Key) -> Any:
        if shape.type is bool:
            if node.kind != nodes.BOOL:
                hint = "YAML 1.2 knows only true and false" if node.text.lower() in ("yes", "no", "on", "off") else ""
                return self.wrong(node, path, f"expected true or false, found {node.seen()}", hint)
            return node.text[0] in "tT"
        if shape.type is int:
            return self._number(node, path, key)
        if node.kind != nodes.TEXT:
            hint = f'quote it: "{node.text}"' if node.kind in (nodes.INT, nodes.FLOAT, nodes.BOOL) else ""
            return self.wrong(node, path, f"expected text, found {node.seen()}", hint)
        return self.text(node, path, key.item)

    def _number(self, node: YamlNode, path: str, key: Key) -> Any:
        if node.kind != nodes.INT or not re.fullmatch(r"-?(0|[1-9][0-9]*)", node.text):
            return self.wrong(node, path, f"expected a whole number, found {node.seen()}")
        if len(node.text) > _INTEGER_DIGITS:
            return self.wrong(node, path, f"{node.text[:20]}... is too large")
        value = int(node.text)
        if key.low is not None and not key.low <= value <= (value if key.high is None else key.high):
            reason = (
                f"too small; the minimum is {key.low}"
                if key.high is None
                else f"out of range ({key.low} to {key.high})"
            )
            return self.wrong(node, path, f"{value} is {reason}")
        return value

    def text(self, node: YamlNode, path: str, pattern: str = "") -> Any:
        """Text that any rendered language can carry, and that matches ``pattern``."""
        text = node.text
        try:
            plain_text(text)
        except ValueError as error:
            hint = "separate the commands by `; `, or put them into a script" if _is_command(path) else ""
            return self.wrong(node, path, str(error), (hint or "write it in one line") if "\n" in text else "")
        if pattern and not matches(pattern, text):
            return self.wrong(node, path, f"{_short(text)} is not accepted here", meaning(pattern))
        return text

    def _value(self, shape: Shape, node: YamlNode, path: str, _key: Key) -> Any:
        type_ = shape.type
        if node.kind != nodes.TEXT and node.kind != getattr(type_, "NUMBER", ""):
            hint = _for_number(type_, node.text) if node.kind in (nodes.INT, nodes.FLOAT) else ""
            return self.wrong(node, path, f"expected text such as {type_.EXAMPLE}, found {node.seen()}", hint)
        try:
            return type_.parse(plain_text(node.text))
        except ValueError as error:
            return self.wrong(node, path, str(error))

    def _enum(self, shape: Shape, node: YamlNode, path: str, _key: Key) -> Any:
        members: type[Enum] = shape.type
        known = {str(member.value): member for member in members}
        if node.text in known and node.kind not in (nodes.MAP, nodes.LIST):
            return known[node.text]
        hint = near(node.text, list(known))
        if members is GpuMode and node.kind in (nodes.MAP, nodes.LIST):
            hint = "for single GPUs, write `gpu: [0]` in a service"
            return self.wrong(node, path, f"expected one of {', '.join(known)}; found {node.seen()}", hint)
        message = f"expected one of {', '.join(known)}; found {node.seen()}"
        return self.wrong(node, path, message, hint if hint.startswith("did you") else "")

    def _sequence(self, shape: Shape, node: YamlNode, path: str, key: Key) -> Any:
        assert shape.inner is not None
        if node.kind != nodes.LIST:
            hint = _as_list(shape.inner, node.text, path) if node.kind not in (nodes.MAP, nodes.NULL) else ""
            return self.wrong(node, path, f"expected a list, found {node.seen()}", hint)
        values = [self.value(shape.inner, child, f"{path}[{i}]", key) for i, child in enumerate(node.elements)]
        return tuple(value for value in values if value is not _WRONG)

    def _mapping(self, shape: Shape, node: YamlNode, path: str, key: Key) -> Any:
        inner = shape.inner
        assert inner is not None
        if node.kind != nodes.MAP:
            hint = _list_for_mapping(inner, node) if node.kind == nodes.LIST else ""
            if inner.kind == shapes.MAPPING and node.kind == nodes.LIST and (pairs := _pairs(node)):
                hint = f"{_GROUPS}: {{common: {{{pairs}}}}}"
            return self.wrong(node, path, f"expected a mapping, found {node.seen()}", hint)
        flat = self._without_group(inner, node, path)
        texts = inner.type is str
        nested = replace(key, names=ENV_NAME) if inner.kind == shapes.MAPPING else key
        values: dict[str, Any] = {}
        for name, child in node.items.items():
            where = _below(path, name)
            if name in flat:
                continue
            if key.names and not matches(key.names, name):
                message = f"{_short(name)} is not a valid name here"
                self.report(message, child.key_place(where), meaning(key.names))
            elif _begun_by_override(inner, child):
                others = [other for other in node.items if other != name]
                self.report("does not exist; overrides can't add it", child.key_place(where), near(name, others))
            elif child.kind != nodes.NULL or (texts and not self.overlay):
                value = self.source_text(child, where) if texts else self.value(inner, child, where, nested)
                if value is not _WRONG:
                    values[name] = value
        return MappingProxyType(values)

    def _without_group(self, inner: Shape, node: YamlNode, path: str) -> set[str]:
        """Variables that stand where a group of them should, as in a service: one problem."""
        if inner.kind != shapes.MAPPING:
            return set()
        flat = {name: one for name, one in node.items.items() if one.kind not in (nodes.MAP, nodes.LIST, nodes.NULL)}
        for number, (name, one) in enumerate(flat.items()):
            where = _below(path, name)
            self.broken.add(where)
            if number == 0:
                items = ", ".join(_item(key, child.text) for key, child in flat.items())
                self.report("is not a group of variables", one.key_place(where), f"{_GROUPS}: {{common: {{{items}}}}}")
        return set(flat)

    def source_text(self, node: YamlNode, path: str) -> Any:
        """The value of a variable, as written in the file: 0.70 stays 0.70."""
        if node.kind == nodes.NULL:
            return self.wrong(node, path, "has no value", 'write "" for an empty text')
        if node.kind in (nodes.MAP, nodes.LIST):
            return self.wrong(node, path, f"expected text, found {node.seen()}", "quote it to pass it on as text")
        return self.text(node, path)

    def _arg(self, _shape: Shape, node: YamlNode, path: str, _key: Key) -> Any:
        """The value of a command-line argument."""
        if node.kind == nodes.BOOL:
            return node.text[0] in "tT"
        if node.kind == nodes.LIST:
            if not node.items:
                return self.wrong(node, path, "is an empty list", "write true for a bare flag")
            words = [self.source_text(child, f"{path}[{i}]") for i, child in enumerate(node.elements)]
            return _WRONG if any(word is _WRONG for word in words) else tuple(words)
        if node.kind == nodes.MAP:
            before = len(self.problems)
            document = self.json_value(node, path)
            wrong = len(self.problems) > before
            return _WRONG if wrong else json.dumps(document, separators=(",", ":"), ensure_ascii=False)
        return self.source_text(node, path)

    def json_value(self, node: YamlNode, path: str) -> Any:
        """A mapping in ``args`` as JSON."""
        if node.kind == nodes.MAP:
            for name, child in node.items.items():
                try:
                    plain_text(name)
                except ValueError as error:
                    self.report(f"the key {_short(name)} {error}", child.key_place(path))
            return {name: self.json_value(child, f"{path}.{name}") for name, child in node.items.items()}
        if node.kind == nodes.LIST:
            return [self.json_value(child, f"{path}[{i}]") for i, child in enumerate(node.elements)]
        if node.kind in (nodes.NULL, nodes.BOOL):
            return None if node.kind == nodes.NULL else node.text[0] in "tT"
        if node.kind in (nodes.INT, nodes.FLOAT):
            try:
                number = json.loads(node.text) if len(node.text) <= 30 else math.nan
            except ValueError:
                number = math.nan
            if not math.isfinite(number):
                return self.wrong(node, path, f"{_short(node.text)} is not a number that JSON can carry", "quote it")
            return number
        return self.text(node, path)


def _begun_by_override(inner: Shape, node: YamlNode) -> bool:
    """Whether an override names an entry that no profile has: it has none of the keys that an entry needs.

    Machines (`nodes`) belong in the local file, and are not overrides there.
    """
    if node.source.layer not in (nodes.LOCAL, nodes.ENVIRONMENT, nodes.SET) or node.kind != nodes.MAP:
        return False
    if inner.kind != shapes.RECORD or inner.type is Machine:
        return False
    required = [name for name, field in fields_of(inner.type).items() if field.required]
    return bool(required) and not any(name in node.items for name in required)


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _short(text: str) -> str:
    text = redact_secrets(text)  # a secret that is cut has no shape any more
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _stand_in(shape: Shape) -> Any:
    """A valid value for a required field whose own value is missing or wrong."""
    if shape.kind == shapes.SCALAR:
        return shape.type()
    if shape.kind == shapes.VALUE:
        return shape.type.parse(shape.type.EXAMPLE)
    if shape.kind == shapes.ENUM:
        return next(iter(shape.type))
    if shape.kind == shapes.RECORD:
        fields = fields_of(shape.type)
        return shape.type(**{name: _stand_in(field.shape) for name, field in fields.items() if field.required})
    return MappingProxyType({}) if shape.kind == shapes.MAPPING else ()


@dataclass(frozen=True)
class BoundProfile:
    """What the semantic checks see of one profile, and where they add problems: at paths below ``base``.

    A path is a tuple (list items by their number), or keys joined by dots.
    """

    profile: Profile
    tree: YamlNode
    _binding: Binding
    root: Path
    base: Path_ = ()

    def at(self, *path: str) -> BoundProfile:
        """The same report for paths below ``path``."""
        return replace(self, base=(*self.base, *path))

    @property
    def top(self) -> BoundProfile:
        """The same report for the whole profile."""
        return replace(self, base=())

    def _full(self, path: Path_ | str) -> tuple[list[str], str]:
        """The parts of the whole path, and its spelling."""
        more = path.split(".") if isinstance(path, str) and path else path
        parts = [str(part) for part in (*self.base, *more)]
        key = ""
        for part in parts:
            key = f"{key}[{part}]" if part.isdigit() and key else _below(key, part)
        return parts, key

    def problem(
        self, path: Path_ | str, message: str, hint: str = "",
        *, at_key: bool = False, whole: bool = False, hidden: bool = False,
    ) -> None:  # fmt: skip
        """Add a problem with the value at ``path``; ``hidden``: it is a secret, so its line is not shown.

        A value that could not be bound gets no second problem; with ``whole``, nor one with a broken value below it.
        """
        parts, key = self._full(path)
        broken = self._binding.broken
        if any(_covers(other, key) or (whole and _covers(key, other)) for other in broken):
            return
        node, missing = self.tree, False
        for part in parts:  # a default has no place: take the nearest value that is written
            missing = part not in node.items
            if missing:
                break
            node = node.items[part]
        place = node.key_place(key) if missing or at_key else node.place(key)
        self._binding.problems.append(Problem(message, replace(place, text="") if hidden else place, hint))

    def once(self, taken: dict[object, str], value: object, owner: str, path: str, what: str, hint: str = "") -> None:
        """Add a problem where ``value`` is taken by another than ``owner``; ``what``: its name, {} for the other's."""
        first = taken.setdefault(value, owner)
        if first != owner:
            self.problem(path, f"{value} is already {what.format(first)}", hint or "choose another")

    def host_path(self, path: str, value: HostPath, *, checkout: bool = False) -> None:
        """Check a path of the machine. The shared file comes from others, so it may name places in the project and in
        the home folder, but no hidden ones (except ~/.cache); a ``checkout`` may also be beside the project."""
        if self.is_shared(path):
            if value.is_machine_specific:
                message = f"{str(value)!r} is an absolute path; this file is shared"
                self.problem(path, message, LOCAL_HINT.format("an absolute path"))
            elif message := self._elsewhere(value, checkout):
                self.problem(path, f"{str(value)!r} {message}", LOCAL_HINT.format("such a path"))
        if value.path.startswith("~") and not value.path.startswith("~/") and value.path != "~":
            self.problem(path, f"{str(value)!r} names another user's home", "write ~/... or an absolute path")
        if "$" in value.path:
            message = f"{str(value)!r} contains a $, but variables are not expanded here"
            self.problem(path, message, "write ~/... for your home")
        elif "{" in value.path or "}" in value.path:
            message = f"{str(value)!r} contains a brace, which a default of a Compose variable cannot carry"
            self.problem(path, message, "rename the folder, or reach it through a link")

    def _elsewhere(self, value: HostPath, checkout: bool) -> str:
        """Why the shared file must not name this path; "" where it may."""
        parts = os.path.normpath(value.path).split("/")
        if not value.is_relative:
            hidden = parts[0] == "~" and (len(parts) == 1 or (parts[1].startswith(".") and parts[1:2] != [".cache"]))
            return "may hold your keys and settings, and this file is shared" if hidden else ""
        if parts[0] == "..":
            beside = checkout and len(parts) > 1 and not parts[1].startswith(".")
            return "" if beside else "leaves the project folder, and this file is shared"
        if not (self.root / value.path).resolve().is_relative_to(self.root.resolve()):
            return "is a link that leaves the project folder, and this file is shared"
        return ""

    def in_project(self, path: Path_ | str, text: str) -> Path | None:
        """The file or folder ``text`` of the project; None, with a problem, where it is missing or outside."""
        plain = self.own_path(path, text)
        if plain is None:
            return None
        place = self.root / plain
        if not place.exists():
            self.problem(path, f"{plain!r} does not exist in the project", "create it, or correct the path")
        elif not place.resolve().is_relative_to(self.root.resolve()):
            self.problem(path, f"{plain!r} is a link that leaves the project folder", "copy it here")
        else:
            return place
        return None

    def own_path(self, path: Path_ | str, text: str) -> str | None:
        """``text`` in its plain spelling; None, with a problem, where it is no path of the project."""
        try:
            return own_path(text)
        except ValueError as error:
            self.problem(path, str(error), "copy it into the project folder")
        return None

    @property
    def partial(self) -> bool:
        """Whether what the profile extends is unknown, so that nothing can be reported as missing."""
        return self._binding.partial

    def is_broken(self, path: str) -> bool:
        """True when the value at ``path`` is missing or wrong, and the profile holds a stand-in."""
        return self._full(path)[1] in self._binding.broken

    def sources(self, *keys: str) -> list[tuple[str, Source]]:
        """The sources in which none of ``keys`` is broken."""
        sources = self.profile.sources.items()
        return [
            (name, s) for name, s in sources if not any(self.top.is_broken(f"sources.{name}.{key}") for key in keys)
        ]

    def node(self, path: str) -> YamlNode | None:
        """The node at ``path``, or None where the value is a default."""
        return self.tree.at(self._full(path)[0])

    def is_shared(self, path: str) -> bool:
        """True when the value at ``path`` comes from the shared project file."""
        node = self.node(path)
        return node is not None and node.source.layer == nodes.PROJECT

    def names(self, path: str) -> list[str]:
        """The keys written at ``path``."""
        node = self.node(path)
        return node.names if node is not None else []


def _covers(key: str, other: str) -> bool:
    return other == key or (other.startswith(key) and other[len(key)] in ".[")


# --- hints: each is accepted when it is followed --------------------------------------------------------------------

_PLAIN = re.compile(r"[A-Za-z0-9_./=@+-]+")
_SHELL = re.compile(r"[&|;<>`$*()]")


# Keys of Compose that people type most, and their names here.
COMPOSE: Mapping[str, str] = {
    "environment": "it is `env` here: {NAME: value} in a service, {GROUP: {NAME: value}} in the profile",
    "env_file": "write `secrets: [NAME]` in the profile for a variable of your shell or of .env, or `env`",
    "volumes": "write `mounts: {NAME: HOST:CONTAINER:ro}` in a service for files of yours, `caches` for volumes",
    "healthcheck": "it is `health: {http: /health}` in a service",
    "network_mode": "it is `network: host` in a service",
    "entrypoint": "write the program first in `command` of a service",
    "depends_on": "not needed: `envgen up` waits until a service is ready; start the other one first",
    "deploy": "write `gpu: [0]` for GPUs, `needs_memory` for memory",
    "init": "not needed: every container has an init",
    "mem_limit": "it is `memory: {limit: 100GiB}` in the profile, for each of its services",
    "memswap_limit": "`memory: {limit: 100GiB}` in the profile allows no swap",
    "stdin_open": "it is `interactive: true` in a service",
    "tty": "it is `interactive: true` in a service",
}
# Keys of a Compose service without a key here: a Compose file of the user's own sets them.
OVERLAY = frozenset((
    "annotations", "blkio_config", "cap_drop", "cgroup", "cgroup_parent", "container_name", "cpu_count",
    "cpu_percent", "cpu_period", "cpu_quota", "cpu_shares", "cpus", "credential_spec", "device_cgroup_rules", "dns",
    "dns_opt", "dns_search", "domainname", "expose", "external_links", "extra_hosts", "group_add", "hostname",
    "isolation", "labels", "links", "mac_address", "mem_reservation", "mem_swappiness",
    "memswap_limit", "networks", "oom_kill_disable", "oom_score_adj", "pid", "pids_limit", "privileged", "read_only",
    "runtime", "security_opt", "stop_grace_period", "stop_signal", "storage_opt", "sysctls", "tmpfs", "userns_mode",
    "uts",
))  # fmt: skip
# Records whose keys people write in the wrong place, and the hint.
_PLACES: tuple[tuple[type, str], ...] = (
    (Profile, "it belongs to the profile"),
    (Service, "it belongs in a service: `services: {{NAME: {{{}: ...}}}}`"),
    *((field.shape.type, f"it belongs below `{name}`") for name, field in fields_of(Profile).items()
      if field.shape.kind == shapes.RECORD),
)  # fmt: skip


def _unknown(cls: type, name: str, node: YamlNode, path: str) -> str:
    """The hint for a key that ``cls`` does not have: its name here, where it belongs, or a similar key.

    ``node``: its value; ``path``: of the record.
    """
    fields = fields_of(cls)
    if cls in (ProjectFile, LocalFile) and name in fields_of(Profile):
        return "it belongs below `defaults:` or below a profile"
    if cls is Service and name == "memory":
        name = "mem_limit"
    if name in COMPOSE:
        return COMPOSE[name]
    if cls in (Service, Profile) and name in OVERLAY:
        value = _flow(node)
        service = path.rpartition(".")[2] if cls is Service else "NAME"
        line = f"services: {{{service}: {{{name}: {value}}}}}"
        return f"write `compose: over.yaml` in the profile, and into the file over.yaml: {line}"
    place = next((place for record, place in _PLACES if record is not cls and name in fields_of(record)), "")
    return place.format(name) if place else near(name, list(fields))


def _list_for_mapping(inner: Shape, node: YamlNode) -> str:
    """The hint for a list, as in Compose, where entries have names here."""
    texts = [child.text for child in node.elements if child.kind == nodes.TEXT]
    if inner.type is Mount and texts:
        return f"give each a name: {{first: {_spelled(texts[0])}}}"
    if inner.type is str and (pairs := _pairs(node)):
        return f"write it as a mapping: {{{pairs}}}"
    return ""


def _pairs(node: YamlNode) -> str:
    """A list of NAME=VALUE as the items of a mapping; "" for any other list."""
    texts = [child.text for child in node.elements if child.kind == nodes.TEXT]
    return ", ".join(_item(*text.split("=", 1)) for text in texts) if all("=" in text for text in texts) else ""


def _item(name: str, text: str) -> str:
    return f"{_spelled(name)}: {_spelled(text)}"


def _spelled(text: str) -> str:
    """``text`` as YAML reads it back, also inside a list."""
    plain = _PLAIN.fullmatch(text) and plain_kind(text) == nodes.TEXT and not text.startswith("-")
    return text if plain else json.dumps(text, ensure_ascii=False)


def _flow(node: YamlNode) -> str:
    """A value in YAML's flow style."""
    if node.kind == nodes.MAP:
        return "{" + ", ".join(f"{_spelled(name)}: {_flow(child)}" for name, child in node.items.items()) + "}"
    if node.kind == nodes.LIST:
        return "[" + ", ".join(map(_flow, node.elements)) + "]"
    return _spelled(node.text) if node.kind == nodes.TEXT else node.text or "null"


def _for_number(type_: Any, text: str) -> str:
    """The hint for a number where a value such as 127.0.0.1:8000:8000 or 30s is expected."""
    for value in (text, f"127.0.0.1:{text}:{text}", f"{text}s"):
        try:
            type_.parse(value)
        except ValueError:
            continue
        return f"quote it: {_spelled(value)}" if value == text else f"write {_spelled(value)}"
    return f"write it like {type_.EXAMPLE}"


def _is_command(path: str) -> bool:
    """Whether the value at ``path`` is a command, one word per item."""
    return re.search(r"(^|\.)(command|prepare)(\[\d+\])?$", path) is not None


def _as_list(inner: Shape, text: str, path: str) -> str:
    """The hint for ``text`` where a list is expected: the words of a command, else one item."""
    items = [text]
    if _is_command(path):
        try:
            items = ["sh", "-c", text] if _SHELL.search(text) else shlex.split(text)
        except ValueError:  # a quote that is never closed
            return "write it as a list, one word per item"
    elif inner.kind == shapes.VALUE and plain_kind(text) != nodes.TEXT:
        return _for_number(inner.type, text).replace("write ", "write it as a list: [") + "]"
    return f"write it as a list: [{', '.join(map(_spelled, items))}]"


def _required(field: Field) -> str:
    """The hint for a missing key: its own required keys with an example each, else its documentation."""
    if field.shape.kind != shapes.RECORD:
        return field.key.doc
    inner = (key for key in fields_of(field.shape.type).values() if key.required)
    keys = (f"{key.name}: {getattr(key.shape.type, 'EXAMPLE', '...')}" for key in inner)
    return f"write `{field.name}: {{{', '.join(keys)}}}`"
