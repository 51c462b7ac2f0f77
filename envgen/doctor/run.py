"""Run the checks: every one, none may stop the others, each finding gets the name of its check."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from envgen.doctor.checks import CHECKS
from envgen.doctor.model import Check, Context, Finding, Severity, Where, error
from envgen.doctor.remedies import envgen


@dataclass(frozen=True)
class Report:
    """All findings, in the order of their places and checks. ``worst`` decides the exit code."""

    context: Context
    findings: tuple[Finding, ...] = ()

    @property
    def worst(self) -> Severity:
        return max((finding.severity for finding in self.findings), default=Severity.OK)

    def count(self, severity: Severity) -> int:
        return sum(finding.severity is severity for finding in self.findings)


def run_one(check: Check, context: Context) -> list[Finding]:
    """One check. A defect in it is an error with its traceback (in --json), and the others still run."""
    try:
        found = check(context)
    except Exception as defect:
        seen = f"{type(defect).__name__}: {defect}"
        cure = envgen(context, "doctor", "--json")
        found = [
            error(
                f"the check {check.id} failed: a defect of envgen",
                seen,
                "a judgement",
                cure,
                case="defect",
                traceback="".join(traceback.format_exception(defect)),
            )
        ]
    return [replace(finding, check=check.id) for finding in found]


def with_more(report: Report, where: Where, findings: Iterable[Finding]) -> Report:
    """The same report with ``findings`` added at ``where``."""
    every = [*report.findings, *(replace(one, where=where) for one in findings)]
    return replace(report, findings=tuple(sorted(every, key=lambda one: one.where)))


def joined(reports: Mapping[str, Report]) -> Report:
    """One report of several machines, by their names; what is between them comes last."""
    first, several = next(iter(reports.values())), len(reports) > 1
    every = [
        replace(one, node=node if several and one.where is not Where.NODES else "")
        for node, report in reports.items()
        for one in report.findings
    ]
    return replace(first, findings=tuple(sorted(every, key=lambda one: one.where is Where.NODES)))


def examine(context: Context, extra: Iterable[Finding] = (), checks: Iterable[Check] = CHECKS) -> Report:
    """Judge everything that was collected. ``extra``: findings made while collecting, about the host."""
    found = [*extra, *(replace(one, where=check.where) for check in checks for one in run_one(check, context))]
    return with_more(Report(context, tuple(found)), Where.HOST, ())
