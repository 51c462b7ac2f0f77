"""Why did it fail? Rules over build, JIT and serve logs: cause, the line that proves it, cure, where to read on.

The rules are data (``rules/*.yaml``), each with an excerpt of a real log.
This package imports nothing but ``errors`` and ``text``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from envgen.text import plain_text

# `#12 34.5 ` of a build, `serve-1  | ` of Compose, `(EngineCore_DP0 pid=17) ` of vLLM, `ERROR: `.
_BEGIN = r"^(?:#\d{1,5} (?:\d{1,7}\.\d{1,4} )?)?(?:[\w.-]{1,80} {1,40}\| )?(?:\([\w ]{1,60}pid=\d{1,9}\) )?(?:error: )?"

_TIME = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{1,9}Z ")  # Docker's, as of `docker logs -t`


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


BATCH = 2000  # lines that are searched at once
LONGEST = 1 << 20  # bytes or characters of one line that are looked at
SHOWN = 400  # characters of a line that are shown as evidence


@dataclass(frozen=True)
class Explanation:
    """``rule`` is stable for programs; ``line`` counts from 1. ``failure``: False for what is just worth knowing."""

    rule: str
    cause: str
    evidence: str
    line: int
    cure: str
    link: str
    failure: bool = True
    rank: int = 0

    def data(self) -> dict[str, object]:
        """What programs get of it: all but the rank."""
        return {name: value for name, value in vars(self).items() if name != "rank"}


def classify(lines: Iterable[str], *, kind: str | None = None) -> tuple[Explanation, ...]:
    """Known causes found in a log: failures before notices, the most certain first; empty when no rule
    knows it.

    ``kind``: build, jit or serve; None asks all rules. Lines may have their line ends. Each rule's text is searched in
    many lines at once: that is some hundred times faster than asking every line. Only lines that have the text are
    looked at closely. A rule that has found its line is not searched again.
    """
    waiting = [(rule, one) for rule in rules_for(kind) for one in rule.patterns]
    found: dict[str, Explanation] = {}
    lines, before = iter(lines), 0
    while batch := [line.rstrip("\r\n")[:LONGEST].replace("\n", " ") for line in islice(lines, BATCH)]:
        block = "\n".join(batch)
        low = block.lower()
        if len(low) != len(block):  # a few letters change their length in lower case
            low = block = "".join(c if len(c.lower()) != 1 else c.lower() for c in block)
        for rule, pattern in waiting:
            one = _search(rule, pattern, block, low, before)
            # Several patterns of a rule may match: the earliest line is the evidence.
            if one and (rule.rule not in found or one.line < found[rule.rule].line):
                found[rule.rule] = one
        waiting = [entry for entry in waiting if entry[0].rule not in found]
        before += len(batch)
    return tuple(sorted(found.values(), key=lambda one: (not one.failure, one.rank)))


def _search(rule: Rule, pattern: Pattern, block: str, low: str, before: int) -> Explanation | None:
    """``before``: how many lines came before the block."""
    at = low.find(pattern.has)
    while at >= 0:
        begin, end = low.rfind("\n", 0, at) + 1, low.find("\n", at)
        end = len(low) if end < 0 else end
        place = pattern.find(low[begin:end])
        if place >= 0:
            first = max(0, min(place - 60, end - begin - SHOWN))  # of a long line, the part around the match
            line, text = before + low.count("\n", 0, begin) + 1, block[begin:end][first : first + SHOWN].strip()
            return Explanation(rule.rule, rule.cause, text, line, rule.cure, rule.link, not rule.notice, rule.rank)
        at = low.find(pattern.has, end)
    return None


def log_lines(log: BinaryIO) -> Iterator[str]:
    """Lines of a log of any size, numbered as in an editor; bytes that are not UTF-8 become U+FFFD.

    Without colours, and without the time that Docker puts before a line (`docker logs -t`, a crash bundle).
    """
    while line := log.readline(LONGEST):
        yield _TIME.sub("", plain_text(line.decode("utf-8", "replace")))
        while line and not line.endswith(b"\n"):  # the rest of one that is too long
            line = log.readline(LONGEST)


@dataclass(frozen=True)
class Cause:
    """A classified failure: ``kind`` is stable for programs, the rest is for people."""

    kind: str
    summary: str
    evidence: str
    cure: str


def cause_of(
    lines: Sequence[str],
    *,
    exit_code: int | None = None,
    service: bool = False,
    oom_killed: bool = False,
) -> Cause | None:
    """The cause of a failure from its output; None when no rule knows it.

    ``service``: the output is a service's, not a build's. ``oom_killed``: as Docker reports it of the container.
    """
    found = {one.rule: one.evidence for one in classify(lines, kind="serve" if service else "build") if one.failure}
    if oom_killed:
        found.setdefault("out_of_memory", "Docker reports that it was killed because memory ran out")
    for rule in rules_for("serve" if service else "build"):
        evidence = found.get(rule.rule)
        if evidence is None and exit_code in rule.codes:
            evidence = f"exit code {exit_code}"
        if evidence is not None:
            return Cause(rule.rule, rule.cause, evidence, rule.cure)
    return None
