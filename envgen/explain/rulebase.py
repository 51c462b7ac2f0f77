"""Reads the rules: YAML files beside this module, in a fixed order. What is specific and certain stands first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from envgen.explain.pattern import Pattern, read_pattern

FOLDER = Path(__file__).parent / "rules"
# A warning about the network early in a log must not hide the kernel that failed at its end.
FILES = ("gpu.yaml", "jit.yaml", "cluster.yaml", "serve.yaml", "host.yaml", "build.yaml", "notices.yaml")
KINDS = ("build", "jit", "serve")
KEYS = frozenset({"rule", "kinds", "cause", "cure", "link", "match", "codes", "notice", "pain", "quoted", "example"})


@dataclass(frozen=True)
class Rule:
    """One known disaster. ``rank``: place among all, 0 = first. ``example``: lines of a real log."""

    rule: str
    rank: int
    kinds: frozenset[str]
    cause: str
    cure: str
    link: str
    patterns: tuple[Pattern, ...]
    example: str
    codes: frozenset[int] = frozenset()  # exit codes that prove it without a line
    notice: bool = False  # worth knowing, no failure
    pain: tuple[int, ...] = ()  # numbers of the field's known pains
    quoted: bool = False  # the example is in the public thread at ``link``; else it is as the tool prints it


@cache
def rules() -> tuple[Rule, ...]:
    """All rules, in order."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    nodes = [node for name in FILES for node in yaml.load((FOLDER / name).read_text("utf-8"), Loader=loader) or ()]
    return tuple(read_rule(node, rank) for rank, node in enumerate(nodes))


def read_rule(node: Mapping[str, Any], rank: int) -> Rule:
    """One entry. ValueError names the rule and what is wrong: only a defect of envgen can cause it."""
    name = str(node.get("rule"))
    unknown = set(node) - KEYS
    kinds = frozenset(node.get("kinds", KINDS))
    if unknown or not kinds <= set(KINDS):
        raise ValueError(f"rule {name}: unknown {sorted(unknown | (kinds - set(KINDS)))}")
    try:
        patterns = tuple(read_pattern(entry) for entry in node["match"])
        return Rule(name, rank, kinds, node["cause"].strip(), node["cure"].strip(), node["link"], patterns,
                    node["example"], frozenset(node.get("codes", ())), bool(node.get("notice", False)),
                    tuple(node.get("pain", ())), bool(node.get("quoted", False)))  # fmt: skip
    except (KeyError, ValueError) as problem:
        raise ValueError(f"rule {name}: {problem}") from None


def rules_for(kind: str | None) -> tuple[Rule, ...]:
    """The rules that apply to logs of ``kind`` (one of KINDS); None: all of them. ValueError for another kind."""
    if kind is None:
        return rules()
    if kind not in KINDS:
        raise ValueError(f"no such kind of log: {kind!r} (there are: {', '.join(KINDS)})")
    return tuple(rule for rule in rules() if kind in rule.kinds)
