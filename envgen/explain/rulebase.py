"""Reads the rules: YAML files beside this module, in a fixed order. What is specific and certain stands first."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

# `#12 34.5 ` of a build, `serve-1  | ` of Compose, `(EngineCore_DP0 pid=17) ` of vLLM, `ERROR: `.
_BEGIN = r"^(?:#\d{1,5} (?:\d{1,7}\.\d{1,4} )?)?(?:[\w.-]{1,80} {1,40}\| )?(?:\([\w ]{1,60}pid=\d{1,9}\) )?(?:error: )?"


@dataclass(frozen=True)
class Pattern:
    """``has``: a lower-case text that is in every matching line; ``rest`` is asked of such lines only."""

    has: str
    parts: tuple[str, ...] = ()
    expression: re.Pattern[str] | None = None

    def find(self, low: str) -> int:
        """Where the match begins in ``low`` (a line in lower case); -1 when there is none."""
        if self.expression is not None:
            match = self.expression.search(low)
            return -1 if match is None else match.start()
        begin = at = -1
        for part in self.parts:
            at = low.find(part, at if at > 0 else 0)
            if at < 0:
                return -1
            begin = at if begin < 0 else begin
            at += len(part)
        return begin


def read_pattern(node: Any) -> Pattern:
    """One entry of a rule's ``match``: a text in which `*` stands for anything, or an expression and what it has."""
    if isinstance(node, str):
        parts = tuple(part for part in node.lower().split("*") if part)
        return Pattern(max(parts, key=len), parts)
    text = str(node["re"])
    text = _BEGIN + text[1:] if text.startswith("^") else text
    return Pattern(str(node["has"]).lower(), expression=re.compile(text, re.I))


FOLDER = Path(__file__).parent / "rules"
# A warning about the network early in a log must not hide the kernel that failed at its end.
FILES = ("gpu.yaml", "jit.yaml", "cluster.yaml", "serve.yaml", "host.yaml", "build.yaml", "notices.yaml")
KINDS = ("build", "jit", "serve")


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
    quoted: bool = False  # the example is in the public thread at ``link``; else it is as the tool prints it


@cache
def rules() -> tuple[Rule, ...]:
    """All rules, in order."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    nodes = [node for name in FILES for node in yaml.load((FOLDER / name).read_text("utf-8"), Loader=loader) or ()]
    return tuple(read_rule(node, rank) for rank, node in enumerate(nodes))


def read_rule(node: Mapping[str, Any], rank: int) -> Rule:
    """One entry."""
    patterns = tuple(read_pattern(entry) for entry in node["match"])
    return Rule(node["rule"], rank, frozenset(node.get("kinds", KINDS)), node["cause"].strip(), node["cure"].strip(),
                node["link"], patterns, node["example"], frozenset(node.get("codes", ())), node.get("notice", False),
                node.get("quoted", False))  # fmt: skip


def rules_for(kind: str | None) -> tuple[Rule, ...]:
    """The rules that apply to logs of ``kind`` (one of KINDS); None: all of them."""
    return tuple(rule for rule in rules() if kind is None or kind in rule.kinds)
