"""The one cause of a failed step, from its last lines and its exit code: what `build` and `up` print."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from envgen.explain.match import classify
from envgen.explain.rulebase import Rule, rules_for


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
    jobs: int | None = None,
    service: bool = False,
    oom_killed: bool = False,
) -> Cause | None:
    """The cause of a failure from its output; None when no rule knows it.

    ``jobs``: the MAX_JOBS that was in use. ``service``: the output is a service's, not a build's.
    ``oom_killed``: the engine itself says that memory was the reason.
    """
    found = {one.rule: one.evidence for one in classify(lines, kind="serve" if service else "build") if one.failure}
    if oom_killed:
        found.setdefault("out_of_memory", "the engine reports that it was killed for want of memory")
    for rule in rules_for("serve" if service else "build"):
        evidence = found.get(rule.rule)
        if evidence is None and exit_code in rule.codes:
            evidence = f"exit code {exit_code}"
        if evidence is not None:
            return Cause(rule.rule, rule.cause, evidence, rule.cure if service else _cure(rule, jobs))
    return None


def next_jobs(jobs: int) -> int | None:
    """Half as many jobs; None when it was one already."""
    return jobs // 2 if jobs > 1 else None


def _cure(rule: Rule, jobs: int | None) -> str:
    """The rule's cure, or for want of memory the number of jobs to build with next."""
    if rule.rule == "out_of_memory":
        return _memory_cure(jobs)
    if rule.rule == "killed":
        return f"`dmesg` shows whether it was memory; if so, {_memory_cure(jobs)}"
    return rule.cure


def _memory_cure(jobs: int | None) -> str:
    if jobs is None:
        return "build with fewer jobs: --max-jobs N (each CUTLASS compilation takes 5 to 10 GB)"
    fewer = next_jobs(jobs)
    if fewer is None:
        return "it ran a single job already: stop other programs, or add memory or swap"
    return f"it ran with MAX_JOBS={jobs}: build again with --max-jobs {fewer} (or a larger build.memory_per_job)"
