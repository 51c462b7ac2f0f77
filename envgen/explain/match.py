"""Search a log for what the rules know, in one pass and in bounded memory.

Each rule's text is searched in many lines at once: that is some hundred times faster than asking every line. Only
lines that have the text are looked at closely. A rule that has found its line is not searched again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import BinaryIO

from envgen.explain.rulebase import Pattern, Rule, rules_for

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
    """What a log says about why it ended as it did: failures before notices, the most certain first; empty when no rule
    knows it.

    ``kind``: build, jit or serve; None asks all rules. Lines may have their line ends.
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
            line, text = before + low.count("\n", 0, begin) + 1, evidence(block[begin:end], place)
            return Explanation(rule.rule, rule.cause, text, line, rule.cure, rule.link, not rule.notice, rule.rank)
        at = low.find(pattern.has, end)
    return None


def log_lines(log: BinaryIO) -> Iterator[str]:
    """Lines of a log of any size, numbered as in an editor; bytes that are not UTF-8 become U+FFFD."""
    while line := log.readline(LONGEST):
        yield line.decode("utf-8", "replace")
        while line and not line.endswith(b"\n"):  # the rest of one that is too long
            line = log.readline(LONGEST)


def evidence(line: str, at: int) -> str:
    """The part of ``line`` around position ``at`` that is shown."""
    if len(line) <= SHOWN:
        return line.strip()
    begin = max(0, min(at - 60, len(line) - SHOWN))
    return line[begin : begin + SHOWN].strip()


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
    memory: str = "",
) -> Cause | None:
    """The cause of a failure from its output; None when no rule knows it.

    ``service``: the output is a service's, not a build's. ``oom_killed``: what Docker says of the container.
    ``memory``: what else proves that memory ran out.
    """
    found = {one.rule: one.evidence for one in classify(lines, kind="serve" if service else "build") if one.failure}
    if oom_killed or memory:
        found.setdefault("out_of_memory", memory or "Docker reports that it was killed because memory ran out")
    for rule in rules_for("serve" if service else "build"):
        evidence = found.get(rule.rule)
        if evidence is None and exit_code in rule.codes:
            evidence = f"exit code {exit_code}"
        if evidence is not None:
            return Cause(rule.rule, rule.cause, evidence, rule.cure)
    return None
