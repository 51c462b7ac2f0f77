"""`envgen bench --checks`: run the scripts of ``checks/deep/`` and record their findings and figures."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from envgen.app.cluster.machines import head_of
from envgen.app.measure import Asked
from envgen.app.session import with_running_variant
from envgen.bench import facts, record
from envgen.bench.checks import FAILED, PASSED, UNKNOWN, Criterion, Outcome, outcome
from envgen.bench.compare import table
from envgen.deployment import known_service
from envgen.doctor import scripts
from envgen.doctor.collect import gather
from envgen.doctor.model import Finding, Severity, Subject
from envgen.engine.process import terminable
from envgen.errors import NotFoundError, UsageError
from envgen.live import moving
from envgen.text import progress

VERDICTS = {Severity.OK: PASSED, Severity.INFO: UNKNOWN, Severity.WARNING: FAILED, Severity.ERROR: FAILED}
VARIABLES = "ENVGEN_CHECK_"  # of this terminal: what the scripts run


def measure(asked: Asked) -> tuple[Outcome, Path]:
    """Run all scripts in the running container. Returns the outcome and the record's path."""
    session = asked.session
    if asked.service is not None:
        known_service(session.profile(), asked.service)
    plain = session.deployment()
    session = with_running_variant(session, asked.service, lambda: head_of(plain, asked.service).engine)
    subject = Subject(session.deployment(), asked.service)
    deployment, profile = subject.deployment, subject.deployment.profile
    if not scripts.scripts_in(folder := deployment.root / scripts.DEEP):
        raise UsageError(f"no checks in {folder}", hint="docs/doctor.md shows one")
    context, _ = gather(subject)
    container = context.container
    if container is None or container.state != "running":
        start = f"envgen up {context.service} {profile.chosen_variant}"
        raise NotFoundError(f"{context.service} of profile {profile.name} is not running", hint=start)
    environment = facts.collect(deployment.engine, container, profile, deployment.root, context.service)
    chosen = {name: value for name, value in sorted(os.environ.items()) if name.startswith(VARIABLES)}
    findings: list[Finding] = []
    samples: list[dict[str, Any]] = []
    with terminable(), record.start(asked.results or deployment.root / "results", "checks", environment, chosen) as run:
        try:
            with moving("checks"):
                for some, rows in scripts.from_deep_folder(
                    context, deployment.root, deployment.engine, progress, chosen
                ):
                    findings += some
                    for sample in (sample for row in rows for sample in samples_of(row)):
                        run.sample(sample)
                        samples.append(sample)
        except KeyboardInterrupt:
            progress(f"\ninterrupted; the results so far are in {run.path}")
            raise
        found = judged(findings, samples)
        run.end(*found)
    return found, run.path


def judged(findings: list[Finding], samples: list[dict[str, Any]]) -> Outcome:
    """The outcome of all scripts: their findings as criteria, and their figures."""
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


def samples_of(row: scripts.KernelRow) -> Iterator[dict[str, Any]]:
    """A row as samples: one for the error, one for each time."""
    cell = {"unit": "repeat", "kernel": row.kernel, "prompt_tokens": row.tokens}
    yield {**cell, "error": "NaN or infinity"} if row.error is None else {**cell, "kernel_error": 100 * row.error}
    for one in row.microseconds:
        yield {**cell, "kernel_us": one}
