"""Rules that find the cause of a failure in a log of a build, of the JIT or of a server.

The rules are data (``rules/*.yaml``), each with an excerpt of a real log. This package imports only ``text``.
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

# Prefixes of a line: `#12 34.5 ` of a build, `serve-1  | ` of Compose, `(EngineCore_DP0 pid=17) ` of vLLM, `ERROR: `.
_BEGIN = r"^(?:#\d{1,5} (?:\d{1,7}\.\d{1,4} )?)?(?:[\w.-]{1,80} {1,40}\| )?(?:\([\w ]{1,60}pid=\d{1,9}\) )?(?:error: )?"

_TIME = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{1,9}Z ")  # Docker's, as of `docker logs -t`


@dataclass(frozen=True)
class Pattern:
    """``has``: text in every matching line, in lower case; a line with it must match ``parts`` or ``expression``."""

    has: str
    parts: tuple[str, ...] = ()
    expression: re.Pattern[str] | None = None

    def find(self, low: str) -> int:
        """Where the match begins in ``low`` (a line in lower case); -1: no match."""
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
    """An entry of a rule's ``match``: a text with `*` for anything, or ``{re: EXPRESSION, has: TEXT}``."""
    if isinstance(node, str):
        parts = tuple(part for part in node.lower().split("*") if part)
        return Pattern(max(parts, key=len), parts)
    text = str(node["re"])
    text = _BEGIN + text[1:] if text.startswith("^") else text
    return Pattern(str(node["has"]).lower(), expression=re.compile(text, re.I))


FOLDER = Path(__file__).parent / "rules"
# In this order: an early warning about the network must not hide a kernel that failed later.
FILES = ("gpu.yaml", "jit.yaml", "cluster.yaml", "serve.yaml", "host.yaml", "build.yaml", "notices.yaml")
KINDS = ("build", "jit", "serve")


@dataclass(frozen=True)
class Rule:
    """One known failure. ``rank``: its position among all rules. ``example``: lines of a real log."""

    rule: str
    rank: int
    kinds: frozenset[str]
    cause: str
    cure: str
    link: str
    patterns: tuple[Pattern, ...]
    example: str
    codes: frozenset[int] = frozenset()  # exit codes that prove it without a log line
    notice: bool = False  # not a failure
    quoted: bool = False  # the example comes from the public thread at ``link``


@cache
def rules() -> tuple[Rule, ...]:
    """All rules, in order."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    nodes = [node for name in FILES for node in yaml.load((FOLDER / name).read_text("utf-8"), Loader=loader) or ()]
    return tuple(read_rule(node, rank) for rank, node in enumerate(nodes))


def read_rule(node: Mapping[str, Any], rank: int) -> Rule:
    """A rule from its YAML node."""
    patterns = tuple(read_pattern(entry) for entry in node["match"])
    return Rule(node["rule"], rank, frozenset(node.get("kinds", KINDS)), node["cause"].strip(), node["cure"].strip(),
                node["link"], patterns, node["example"], frozenset(node.get("codes", ())), node.get("notice", False),
                node.get("quoted", False))  # fmt: skip


def rules_for(kind: str | None) -> tuple[Rule, ...]:
    """The rules for logs of ``kind`` (one of KINDS); None: all."""
    return tuple(rule for rule in rules() if kind is None or kind in rule.kinds)


BATCH = 2000  # lines that are searched at once
LONGEST = 1 << 20  # the rest of a longer line is ignored
SHOWN = 400  # characters of a line that are shown as evidence


@dataclass(frozen=True)
class Explanation:
    """A rule that matched. ``rule``: its stable name; ``line``: from 1 (0: none); ``failure``: False for a notice."""

    rule: str
    cause: str
    evidence: str
    line: int
    cure: str
    link: str
    failure: bool = True
    rank: int = 0

    def data(self) -> dict[str, object]:
        """All fields but the rank, for JSON."""
        return {name: value for name, value in vars(self).items() if name != "rank"}


def classify(lines: Iterable[str], *, kind: str | None = None) -> tuple[Explanation, ...]:
    """The known causes in a log: failures before notices, then by rank.

    ``kind``: build, jit or serve; None: all rules. Lines may have their line ends. Each rule's text is searched in many
    lines at once, some hundred times faster than line by line; only lines with the text are matched. Each rule matches
    once.
    """
    waiting = [(rule, pattern) for rule in rules_for(kind) for pattern in rule.patterns]
    found: dict[str, Explanation] = {}
    lines, before = iter(lines), 0
    while batch := [line.rstrip("\r\n")[:LONGEST].replace("\n", " ") for line in islice(lines, BATCH)]:
        block = "\n".join(batch)
        low = block.lower()
        if len(low) != len(block):  # a few letters change their length in lower case
            low = block = "".join(c if len(c.lower()) != 1 else c.lower() for c in block)
        for rule, pattern in waiting:
            match = _search(rule, pattern, block, low, before)
            # Several patterns of a rule may match: the earliest line is the evidence.
            if match and (rule.rule not in found or match.line < found[rule.rule].line):
                found[rule.rule] = match
        waiting = [(rule, pattern) for rule, pattern in waiting if rule.rule not in found]
        before += len(batch)
    return tuple(sorted(found.values(), key=lambda match: (not match.failure, match.rank)))


def _search(rule: Rule, pattern: Pattern, block: str, low: str, before: int) -> Explanation | None:
    """Search a block of lines; ``low``: in lower case; ``before``: the number of lines before it."""
    at = low.find(pattern.has)
    while at >= 0:
        begin, end = low.rfind("\n", 0, at) + 1, low.find("\n", at)
        end = len(low) if end < 0 else end
        place = pattern.find(low[begin:end])
        if place >= 0:
            first = max(0, min(place - 60, end - begin - SHOWN))  # of a long line, the part around the match
            line, text = before + low.count("\n", 0, begin) + 1, block[begin:end][first : first + SHOWN].strip()
            return _explanation(rule, text, line)
        at = low.find(pattern.has, end)
    return None


def _explanation(rule: Rule, evidence: str, line: int = 0) -> Explanation:
    return Explanation(rule.rule, rule.cause, evidence, line, rule.cure, rule.link, not rule.notice, rule.rank)


def log_lines(log: BinaryIO) -> Iterator[str]:
    """The lines of a log, without colours and without Docker's time stamps (`docker logs -t`, a crash bundle).

    Bytes that are not UTF-8 become U+FFFD.
    """
    while line := log.readline(LONGEST):
        yield _TIME.sub("", plain_text(line.decode("utf-8", "replace")))
        while line and not line.endswith(b"\n"):  # skip the rest of a long line
            line = log.readline(LONGEST)


def cause_of(
    lines: Sequence[str],
    *,
    exit_code: int | None = None,
    service: bool = False,
    oom_killed: bool = False,
) -> Explanation | None:
    """The cause of a failure from its output; None if no rule matches.

    ``service``: the output is a service's, not a build's. ``oom_killed``: Docker's flag of the container.
    """
    kind = "serve" if service else "build"
    found = {explanation.rule: explanation for explanation in classify(lines, kind=kind)}
    for rule in rules_for(kind):
        if rule.rule in found and not rule.notice:
            return found[rule.rule]
        if oom_killed and rule.rule == "out_of_memory":
            return _explanation(rule, "Docker reports that it was killed because memory ran out")
        if exit_code in rule.codes:
            return _explanation(rule, f"exit code {exit_code}")
    return None
