"""`envgen bench --checks`: run the scripts of ``checks/deep/`` and record their findings and figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from envgen.bench import facts
from envgen.bench.checks import FAILED, PASSED, UNKNOWN, Criterion, Outcome, outcome
from envgen.bench.compare import table
from envgen.doctor import scripts
from envgen.doctor.collect import gather
from envgen.doctor.model import Context, Finding, Severity, Subject
from envgen.errors import NotFoundError, UsageError
from envgen.text import progress

VERDICTS = {Severity.OK: PASSED, Severity.INFO: UNKNOWN, Severity.WARNING: FAILED, Severity.ERROR: FAILED}


def place(subject: Subject) -> tuple[Context, dict[str, Any]]:
    """The context of the running container, and its environment for the record."""
    deployment, folder = subject.deployment, subject.deployment.root / scripts.DEEP
    if not scripts.scripts_in(folder):
        raise UsageError(f"no checks in {folder}", hint="docs/doctor.md shows one")
    context, _ = gather(subject)
    container = context.container
    if container is None or container.state != "running":
        start = f"envgen up {context.service} {deployment.profile.chosen_variant}"
        raise NotFoundError(f"{context.service} of profile {deployment.profile.name} is not running", hint=start)
    return context, facts.collect(deployment.engine, container, deployment.profile, deployment.root, context.service)


def measure(
    subject: Subject, context: Context, keep: Callable[[Mapping[str, Any]], None], chosen: Mapping[str, str]
) -> Outcome:
    """Run all scripts; ``keep`` gets a script's samples as soon as it has ended. ``chosen``: see ``chosen_by``."""
    findings: list[Finding] = []
    samples: list[dict[str, Any]] = []
    for some, rows in scripts.from_deep_folder(
        context, subject.deployment.root, subject.deployment.engine, progress, chosen
    ):
        findings += some
        for sample in (sample for row in rows for sample in samples_of(row)):
            keep(sample)
            samples.append(sample)
    criteria = [
        Criterion(one.title, VERDICTS[one.severity], one.seen or one.title, one.expected, part=one.check)
        for one in findings
    ]
    by_cell: dict[str, dict[str, Any]] = {}
    for metric, cells in table(samples).items():
        for cell, series in cells.items():
            by_cell.setdefault(str(cell), {"test": str(cell), "remarks": []})[metric] = series.plain()
    word, summary = outcome(criteria, cells=list(by_cell.values()))
    return (UNKNOWN if word == PASSED and not any(one.verdict == PASSED for one in criteria) else word), summary


def chosen_by(kernel: str | None, tokens: Sequence[int] | None, quick: bool) -> dict[str, str]:
    """The variables that tell scripts what to run: a part of kernels' names, numbers of tokens, and less of both."""
    found = {"ENVGEN_CHECK_KERNEL": kernel, "ENVGEN_CHECK_TOKENS": ",".join(map(str, tokens or ()))}
    return {name: value for name, value in {**found, "ENVGEN_CHECK_QUICK": "1" if quick else ""}.items() if value}


def samples_of(row: scripts.KernelRow) -> Iterator[dict[str, Any]]:
    """A row as samples: one for the error, one for each time."""
    cell = {"unit": "repeat", "kernel": row.kernel, "prompt_tokens": row.tokens}
    yield {**cell, "error": "NaN or infinity"} if row.error is None else {**cell, "kernel_error": 100 * row.error}
    for one in row.microseconds:
        yield {**cell, "kernel_us": one}
