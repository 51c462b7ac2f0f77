"""Why did it fail? Rules over the output of a failed step: a cause, the line that proves it, and what to do.

The rules themselves are data: ``causes.py``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from envgen.engine.causes import BUILD, SERVICE, Rule


@dataclass(frozen=True)
class Cause:
    """A classified failure: ``kind`` is stable for programs, the rest is for people."""

    kind: str
    summary: str
    evidence: str
    cure: str


_LONGEST = 2000  # of a line that is matched: one-line build logs of megabytes exist


def classify(
    lines: Sequence[str], *, exit_code: int | None = None, jobs: int | None = None, service: bool = False
) -> Cause | None:
    """The cause of a failure from its output; None when no rule knows it.

    ``jobs``: the MAX_JOBS that was in use. ``service``: the output is a service's, not a build's.
    """
    for rule, patterns in _compiled(service):
        evidence = next((line for line in lines if any(p.search(line[:_LONGEST]) for p in patterns)), None)
        if evidence is None and exit_code in rule.codes:
            evidence = f"exit code {exit_code}"
        if evidence is not None:
            cure = _memory_cure(jobs) if rule.kind == "out_of_memory" else rule.cure
            return Cause(rule.kind, rule.summary, evidence.strip()[:400], cure)
    return None


@cache
def _compiled(service: bool) -> tuple[tuple[Rule, tuple[re.Pattern[str], ...]], ...]:
    rules = (*SERVICE, *BUILD) if service else BUILD
    return tuple((rule, tuple(re.compile(pattern, re.IGNORECASE) for pattern in rule.patterns)) for rule in rules)


def next_jobs(jobs: int) -> int | None:
    """Half as many jobs; None when it was one already."""
    return jobs // 2 if jobs > 1 else None


def _memory_cure(jobs: int | None) -> str:
    if jobs is None:
        return "build with fewer jobs: --max-jobs N (each CUTLASS compilation takes 5 to 10 GB)"
    fewer = next_jobs(jobs)
    if fewer is None:
        return "it ran a single job already: stop other programs, or add memory or swap"
    return f"it ran with MAX_JOBS={jobs}: build again with --max-jobs {fewer} (or a larger build.memory_per_job)"
