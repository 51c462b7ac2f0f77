"""What differed between the environments of two or more runs, in words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envgen.results.model import Record

# What a section's values are called; the order is that of the report.
SECTIONS: Mapping[str, str] = {
    "imported": "where the figures come from",
    "project": "project",
    "profile": "profile",
    "variant": "variant",
    "service": "service",
    "lock": "lock",
    "image": "image",
    "engine": "engine",
    "model": "model",
    "sources": "source commit",
    "versions": "version",
    "gpu": "GPU",
    "kernels": "kernel",
    "env": "variable",
    "flags": "server flag",
    "host": "host",
    "container": "container",
    "render": "rendered files",
    "inputs": "input of the image",
    "url": "address",
    "envgen": "envgen",
    "parameters": "asked for",
}


_DIGEST = re.compile(r"\b((?:sha256:)?[0-9a-f]{12})[0-9a-f]{52}\b")


@dataclass(frozen=True)
class Differing:
    """One thing that is not the same in all runs. ``values`` has a text for each run, None where it isn't there.

    ``recorded`` = did the run record anything of this section? A flag that is absent among others was not set.
    """

    section: str
    name: str
    values: tuple[str | None, ...]
    recorded: tuple[bool, ...]

    def words(self, names: Sequence[str]) -> str:
        """``variable X: not set in A, marlin in B``; runs that agree are named together."""
        head = SECTIONS.get(self.section, self.section)
        if self.name:
            head += f" {self.name}"
        short = _shortened([value for value in self.values if value is not None])
        groups: dict[str, list[str]] = {}
        for name, value, recorded in zip(names, self.values, self.recorded, strict=True):
            absent = "not set" if recorded and self.section in ("env", "flags") else "not recorded"
            groups.setdefault(absent if value is None else short[value], []).append(name)
        parts = [f"{text} in {', '.join(who)}" for text, who in groups.items()]
        return f"{head}: {'; '.join(parts)}"


def _shortened(values: Sequence[str]) -> dict[str, str]:
    """Digests by their first twelve digits, unless that makes two values alike; the JSON has all of them."""
    short = {value: _DIGEST.sub(r"\1…", value) or "(empty)" for value in values}
    return short if len(set(short.values())) == len(short) else {value: value or "(empty)" for value in values}


def differences(records: Sequence[Record]) -> list[Differing]:
    """All that is not the same in the environments and parameters of ``records``."""
    sides = [_flat(record) for record in records]
    # An imported run's label is its name: the table of runs has it.
    keys = sorted({key for side in sides for key in side} - {("imported", "label")}, key=_order)
    found = []
    for section, name in keys:
        values = tuple([side.get((section, name)) for side in sides])
        if len(set(values)) > 1:
            recorded = tuple([any(key[0] == section for key in side) for side in sides])
            found.append(Differing(section, name, values, recorded))
    return found


def _order(key: tuple[str, str]) -> tuple[int, str, str]:
    known = list(SECTIONS)
    section, name = key
    return (known.index(section) if section in known else len(known), section, name)


def flat_values(record: Record) -> list[tuple[tuple[str, str], str]]:
    """The environment of a run as (section, name) and text, in the order of the report; not its parameters."""
    found = _flat(record)
    return [(key, found[key]) for key in sorted(found, key=_order) if key[0] != "parameters"]


def _flat(record: Record) -> dict[tuple[str, str], str]:
    found: dict[tuple[str, str], str] = {}
    for section, value in (*record.environment.items(), ("parameters", record.parameters)):
        if section == "flags" and isinstance(value, (tuple, list)):
            value = flags(value)
        for name, text in _leaves("", value):
            found[section, name] = text
    return found


def _leaves(prefix: str, value: Any) -> list[tuple[str, str]]:
    if isinstance(value, Mapping):
        found = []
        for name, item in value.items():
            found += _leaves(f"{prefix}.{name}" if prefix else str(name), item)
        return found
    if isinstance(value, (tuple, list)):
        return [(prefix, " ".join(str(item) for item in value))]
    return [] if value is None else [(prefix, str(value))]


def flags(words: Sequence[Any]) -> dict[str, str]:
    """Server arguments as flag -> value: ``--a b``, ``--a=b``, a bare ``--a`` (yes); other words keep their order."""
    found: dict[str, str] = {}
    rest: list[str] = []
    texts = [str(word) for word in words]
    index = 0
    while index < len(texts):
        word = texts[index]
        index += 1
        if not word.startswith("--"):
            rest.append(word)
            continue
        name, equals, value = word.partition("=")
        taken = [value] if equals else []
        while not equals and index < len(texts) and not texts[index].startswith("--"):
            taken.append(texts[index])  # a list option takes several
            index += 1
        found[name] = " ".join(taken) if taken else "yes"
    if rest:
        found["(other words)"] = " ".join(rest)
    return found
