"""Run the checks, and print their findings."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby

from envgen.binding import JsonDict
from envgen.doctor.checks import CHECKS
from envgen.doctor.model import Check, Context, Finding, Section, Severity, error
from envgen.doctor.remedies import envgen
from envgen.text import Styled, counted, paint, visible


@dataclass(frozen=True)
class Report:
    """All findings, by place and check. ``worst`` decides the exit code."""

    context: Context
    findings: tuple[Finding, ...] = ()

    @property
    def worst(self) -> Severity:
        return max((finding.severity for finding in self.findings), default=Severity.OK)

    def count(self, severity: Severity) -> int:
        return sum(finding.severity is severity for finding in self.findings)


def run_one(check: Check, context: Context) -> list[Finding]:
    """The findings of one check. An exception in it is a finding with a traceback (in --json)."""
    try:
        findings = check(context)
    except Exception as defect:
        evidence = f"{type(defect).__name__}: {defect}"
        cure = envgen(context, "doctor", "--json")
        title = f"the check {check.id} failed: a defect of envgen"
        stack = "".join(traceback.format_exception(defect))
        findings = [error(title, evidence, "a finding", cure, case="defect", traceback=stack)]
    return [replace(finding, check=check.id, where=check.where) for finding in findings]


def joined(reports: Mapping[str, Report]) -> Report:
    """The reports of several machines in one, by the machines' names."""
    first = next(iter(reports.values()))
    if len(reports) == 1:
        return first
    every = [
        replace(finding, node=node)
        for node, report in reports.items()
        for finding in report.findings
    ]
    return replace(first, findings=tuple(every))


def examine(context: Context) -> Report:
    """Run the checks."""
    findings = [finding for check in CHECKS for finding in run_one(check, context)]
    return Report(context, tuple(sorted(findings, key=lambda finding: finding.where)))


HEADINGS = {
    Section.HOST: "Host",
    Section.IMAGE: "Image",
    Section.CONTAINER: "Container",
    Section.INSIDE: "Inside the container",
    Section.NODES: "Between the machines",
}
MARKS = {  # mark, colour
    Severity.OK: ("ok", "32"),
    Severity.INFO: ("--", "2"),
    Severity.WARNING: ("warn", "33"),
    Severity.ERROR: ("FAIL", "31;1"),
}


def lines_of(finding: Finding, file: str, colour: bool) -> list[str]:
    """A finding's mark and title; unless it is OK, also what was seen, what was expected, and the
    fix.

    ``file``: where a fix that is a line belongs.
    """
    mark, shade = MARKS[finding.severity]
    lines = [f"  {paint(f'{mark:<4}', shade, colour)}  {visible(finding.title)}"]
    if finding.severity is Severity.OK:
        return lines
    cure = finding.remedy.text if finding.remedy else ""
    if finding.remedy and finding.remedy.is_line:
        cure += f"   (in {file})"
    for label, text in (("seen", finding.seen), ("expected", finding.expected), ("fix", cure)):
        if text:
            lines.append(f"        {label + ':':<9} {visible(text)}")
    return lines


def as_text(report: Report, *, colour: bool = False) -> str:
    """The whole report, grouped by place."""
    out = []
    file = f"{report.context.project_file}, profile {report.context.profile.name}"
    for (node, where), findings in groupby(
        report.findings, key=lambda finding: (finding.node, finding.where)
    ):
        out.append(paint(HEADINGS[where] + f" on {node}" * bool(node), "1", colour))
        for finding in findings:
            out += lines_of(finding, file, colour)
    counts = ((Severity.ERROR, "error"), (Severity.WARNING, "warning"))
    parts = [
        counted(report.count(severity), word) for severity, word in counts if report.count(severity)
    ]
    text = "\n".join([*out, "", ", ".join([*parts, f"{report.count(Severity.OK)} ok"])])
    return Styled(text) if colour else text


def as_data(report: Report) -> JsonDict:
    """The whole report as JSON."""
    context = report.context
    return {
        "profile": context.profile.name,
        "service": context.service,
        "container": context.container.name if context.container else None,
        "worst": report.worst.word,
        "counts": {severity.word: report.count(severity) for severity in Severity},
        "findings": list(map(row_of, report.findings)),
    }


def row_of(finding: Finding) -> JsonDict:
    """A finding as JSON."""
    remedy = finding.remedy and {
        "kind": "profile" if finding.remedy.is_line else "command",
        "text": finding.remedy.text,
    }
    return {
        "check": finding.check,
        "where": finding.where.word,
        "node": finding.node or None,
        "severity": finding.severity.word,
        "title": finding.title,
        "seen": finding.seen,
        "expected": finding.expected,
        "remedy": remedy,
        "evidence": dict(finding.evidence),
    }
