"""The project file that is being made: values, remarks, what found no place; and its text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from envgen.profile.tree import BOOL, NULL, TEXT, plain_kind
from envgen.redact import is_secret_value, redact_secrets, secret_in, secret_like
from envgen.text import forbidden_character, shorten, visible

Path_ = tuple[str, ...]
_WIDTH = 110
_PLAIN = re.compile(r"[A-Za-z0-9_./~+][A-Za-z0-9_./~+=@%-]*(:[A-Za-z0-9_./~+=@%-]+)*")
_FLOW_PLAIN = re.compile(r"[A-Za-z0-9_./~+][A-Za-z0-9_./~+=@-]*")
_WORDS = frozenset(("y", "n", "yes", "no", "on", "off"))  # which other readers of YAML take for yes and no


@dataclass(frozen=True)
class Unplaced:
    """What the project file has no place for, and what to do about it. No value of a variable is in it."""

    file: str
    line: int
    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}: {self.why}"


@dataclass
class Draft:
    """One profile. ``values``: for envgen.yaml; ``local``: for envgen.local.yaml, what only this machine has."""

    name: str
    profile: str
    values: dict[str, Any] = field(default_factory=dict)
    local: dict[str, Any] = field(default_factory=dict)
    remarks: dict[Path_, list[str]] = field(default_factory=dict)
    unplaced: list[Unplaced] = field(default_factory=list)
    defaults: dict[Path_, list[str]] = field(default_factory=dict)  # variables whose defaults were taken
    services: dict[str, str] = field(default_factory=dict)  # as the Compose file calls it -> as the profile does

    def put(self, *path: str, value: Any, local: bool = False) -> None:
        """Set one value; mappings on the way are made."""
        at = self.local if local else self.values
        for part in path[:-1]:
            at = at.setdefault(part, {})
        at[path[-1]] = value

    def get(self, *path: str) -> Any:
        """The value there; None where there is none."""
        at: Any = self.values
        for part in path:
            at = at.get(part) if isinstance(at, dict) else None
        return at

    def add(self, *path: str, value: str) -> None:
        """Append to a list, each value once."""
        found = self.get(*path) or []
        if value not in found:
            self.put(*path, value=[*found, value])

    def remark(self, *path: str, text: str) -> None:
        """A comment above a key."""
        found = self.remarks.setdefault(path, [])
        if text not in found:
            found.append(text)

    def defaulted(self, *path: str, names: Iterable[str]) -> None:
        """A comment above a key: its text had these variables."""
        for name in names:
            found = self.defaults.setdefault(path, [])
            found += [name] if name not in found else []

    def note(self, file: str, line: int, what: str, why: str) -> None:
        """List something that has no place; each once."""
        made = Unplaced(visible(file), line, redact_secrets(shorten(visible(what), 160)), redact_secrets(why))
        if made not in self.unplaced:
            self.unplaced.append(made)


def refused(name: str, value: str) -> str:
    """Why ``value`` may not stand in the project file under ``name``; empty when it may."""
    if secret_in(value) or (secret_like(name.replace("-", "_")) and is_secret_value(value)):
        return "looks like a secret, so its value was not copied"
    if forbidden_character(value):
        return "has a line break or a control character, which no value here can have"
    return ""


def text_of(draft: Draft, sources: str) -> str:
    """The whole of envgen.yaml."""
    head = [
        "# yaml-language-server: $schema=./envgen.schema.json",
        "#",
        f"# Written by `envgen init --from` from {visible(sources)}. It is yours: edit it.",
        "# Every key is described in docs/profile.md; `envgen config --explain` shows where each value comes from.",
        "version: 1",
        f"name: {draft.name}",
        f"default_profile: {draft.profile}",
        "",
        "profiles:",
        f"  {draft.profile}:",
    ]
    remarks = {path: list(texts) for path, texts in draft.remarks.items()}
    for path, names in draft.defaults.items():
        text = f"Had {', '.join(f'${{{name}}}' for name in names)}: what stands here is the default."
        remarks.setdefault(path, []).append(text)
    body = list(_mapping(draft.values, (), 2, remarks))
    tail = []
    if draft.unplaced:
        tail = ["", "# Not placed: what this file has no key for, by the line that it stands in."]
        for one in draft.unplaced:
            tail += [f"#   {one.file}:{one.line}: {one.what}", f"#       {one.why}"]
    return "\n".join([*head, *body, *tail]) + "\n"


def local_text(draft: Draft) -> str:
    """The whole of envgen.local.yaml; empty where this machine has nothing of its own."""
    if not draft.local:
        return ""
    head = ["# Facts about this machine; git ignores the file. Same shape as envgen.yaml.", "version: 1", "profiles:"]
    return "\n".join([*head, f"  {draft.profile}:", *_mapping(draft.local, (), 2, {})]) + "\n"


def _mapping(values: Mapping[str, Any], path: Path_, depth: int, remarks: Mapping[Path_, list[str]]) -> Iterator[str]:
    pad = "  " * depth
    for key, value in values.items():
        here = (*path, key)
        for text in remarks.get(here, ()):
            yield f"{pad}# {visible(text)}"
        head = f"{pad}{scalar(key)}:"
        if isinstance(value, (dict, list)):
            below = any(other[: len(here)] == here and len(other) > len(here) for other in remarks)
            flow = f"{head} {_flow(value)}"
            if isinstance(value, list):
                leaf = True
            else:
                leaf = depth > 2 and len(value) < 3 and not any(isinstance(one, dict) for one in value.values())
            if not value or (leaf and not below and len(flow) <= _WIDTH):
                yield flow
            elif isinstance(value, list):
                yield head
                yield from (f"{pad}  - {_word(item)}" for item in value)
            else:
                yield head
                yield from _mapping(value, here, depth + 1, remarks)
        else:
            yield f"{head} {scalar(value)}"


def _flow(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_word(one, _FLOW_PLAIN) for one in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{scalar(key)}: {_flow(one)}" for key, one in value.items()) + "}"
    return scalar(value, _FLOW_PLAIN)


def _word(value: str, plain: re.Pattern[str] = _PLAIN) -> str:
    """One of a list of texts: what looks like a number is quoted."""
    return scalar(value, plain) if plain_kind(value) == TEXT else json.dumps(value)


def scalar(value: Any, plain: re.Pattern[str] = _PLAIN) -> str:
    """A value as YAML: text that other readers would take for something else is quoted."""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    if re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", text):
        return text
    if plain.fullmatch(text) and plain_kind(text) not in (BOOL, NULL) and text.lower() not in _WORDS:
        return text
    return json.dumps(text, ensure_ascii=False)
