"""The one cause of a failed step, from its last lines and its exit code: what `build` and `up` print."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from envgen.explain.match import classify
from envgen.explain.rulebase import rules_for


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
