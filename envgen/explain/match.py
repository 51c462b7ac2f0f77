"""Search a log for what the rules know, in one pass and in bounded memory.

Lines are put together into blocks, and each rule's text is searched in the whole block at once: that is some hundred
times faster than asking every line. Only lines that have the text are looked at closely. A rule that has found its
line is not searched again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from envgen.explain.rulebase import Pattern, Rule, rules_for

BLOCK = 1 << 20  # characters that are searched at once
LONGEST = 1 << 20  # characters of one line that are looked at
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


class Classifier:
    """Takes a log piece by piece: ``feed`` it lines as they come, then ask for ``result``."""

    def __init__(self, kind: str | None = None) -> None:
        self._open: list[tuple[Rule, Pattern]] = [(rule, one) for rule in rules_for(kind) for one in rule.patterns]
        self._found: dict[str, Explanation] = {}
        self.lines = 0  # how many were read

    def feed(self, lines: Sequence[str]) -> list[Explanation]:
        """Look at some more lines; what they newly explain, by line."""
        block = "\n".join(line[:LONGEST].replace("\n", " ") for line in lines)
        low = block.lower()
        if len(low) != len(block):  # a few letters change their length in lower case
            low = block = "".join(c if len(c.lower()) != 1 else c.lower() for c in block)
        new: dict[str, Explanation] = {}
        for rule, pattern in self._open:
            found = self._search(rule, pattern, block, low)
            # Several patterns of a rule may match: the earliest line is the evidence.
            if found and (rule.rule not in new or found.line < new[rule.rule].line):
                new[rule.rule] = found
        self._found.update(new)
        if new:
            self._open = [entry for entry in self._open if entry[0].rule not in new]
        self.lines += len(lines)
        return sorted(new.values(), key=lambda one: one.line)

    def result(self) -> tuple[Explanation, ...]:
        """All that was explained so far: failures before notices, the most certain first."""
        return tuple(sorted(self._found.values(), key=lambda one: (not one.failure, one.rank)))

    def _search(self, rule: Rule, pattern: Pattern, block: str, low: str) -> Explanation | None:
        at = low.find(pattern.has)
        while at >= 0:
            begin = low.rfind("\n", 0, at) + 1
            end = low.find("\n", at)
            end = len(low) if end < 0 else end
            place = pattern.find(low[begin:end])
            if place >= 0:
                number = self.lines + low.count("\n", 0, begin) + 1
                text = evidence(block[begin:end], place)
                return Explanation(
                    rule.rule, rule.cause, text, number, rule.cure, rule.link, not rule.notice, rule.rank
                )
            at = low.find(pattern.has, end)
        return None


def evidence(line: str, at: int) -> str:
    """The part of ``line`` around position ``at`` that is shown."""
    if len(line) <= SHOWN:
        return line.strip()
    begin = max(0, min(at - 60, len(line) - SHOWN))
    return line[begin : begin + SHOWN].strip()


def blocks(lines: Iterable[str]) -> Iterable[list[str]]:
    """Lines in lists of about BLOCK characters."""
    kept: list[str] = []
    size = 0
    for line in lines:
        kept.append(line)
        size += min(len(line), LONGEST)
        if size >= BLOCK:
            yield kept
            kept, size = [], 0
    if kept:
        yield kept


def classify(lines: Iterable[str], *, kind: str | None = None) -> tuple[Explanation, ...]:
    """What a log says about why it ended as it did, best first; empty when no rule knows it.

    ``kind``: build, jit or serve; None asks all rules. Lines may have their line ends. ValueError for another kind.
    """
    classifier = Classifier(kind)
    for block in blocks(line.rstrip("\r\n") for line in lines):
        classifier.feed(block)
    return classifier.result()


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
