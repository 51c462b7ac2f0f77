"""A report as text for people and as plain data for programs."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from envgen.doctor.model import Finding, Severity, Where
from envgen.doctor.run import Report
from envgen.text import Styled, counted, paint, visible

HEADINGS = {
    Where.HOST: "Host",
    Where.IMAGE: "Image",
    Where.CONTAINER: "Container",
    Where.INSIDE: "Inside the container",
    Where.NODES: "The machines of the cluster",
}
MARKS = {Severity.OK: "ok", Severity.INFO: "--", Severity.WARNING: "warn", Severity.ERROR: "FAIL"}
COLOURS = {Severity.OK: "32", Severity.INFO: "2", Severity.WARNING: "33", Severity.ERROR: "31;1"}


def remedy_text(finding: Finding, report: Report) -> str:
    """The cure, with the place where a line belongs."""
    if finding.remedy is None:
        return ""
    if not finding.remedy.is_line:
        return finding.remedy.text
    context = report.context
    return f"{finding.remedy.text}   (in {context.project_file}, profile {context.profile.name})"


def lines_of(finding: Finding, report: Report, colour: bool) -> list[str]:
    """One finding: its mark and title, and below it what was seen and what to do."""
    mark = paint(f"{MARKS[finding.severity]:<4}", COLOURS[finding.severity], colour)
    found = [f"  {mark}  {visible(finding.title)}"]
    if finding.severity is Severity.OK:
        return found
    for label, text in (("seen", finding.seen), ("expected", finding.expected), ("fix", remedy_text(finding, report))):
        if text:
            found.append(f"        {label + ':':<9} {visible(text)}")
    return found


def summary(report: Report) -> str:
    """`2 errors, 1 warning, 14 checks passed`."""
    errors, warnings = report.count(Severity.ERROR), report.count(Severity.WARNING)
    parts = [counted(errors, "error")] if errors else []
    parts += [counted(warnings, "warning")] if warnings else []
    parts.append(f"{report.count(Severity.OK)} ok")
    return ", ".join(parts)


def as_text(report: Report, *, colour: bool = False) -> str:
    """The whole report, grouped by place."""
    out: list[str] = []
    for (node, where), findings in groupby(report.findings, key=lambda one: (one.node, one.where)):
        out.append(paint(HEADINGS[where] + f" on {node}" * bool(node), "1", colour))
        for finding in findings:
            out += lines_of(finding, report, colour)
    text = "\n".join([*out, "", summary(report)])
    return Styled(text) if colour else text


def as_data(report: Report) -> dict[str, Any]:
    """Stable keys: profile, service, container, worst, counts, findings."""
    context = report.context
    return {
        "profile": context.profile.name,
        "service": context.service,
        "container": context.container.name if context.container else None,
        "worst": report.worst.word,
        "counts": {severity.word: report.count(severity) for severity in Severity},
        "findings": [
            {
                "check": finding.check,
                "where": finding.where.word,
                "node": finding.node or None,
                "severity": finding.severity.word,
                "title": finding.title,
                "seen": finding.seen,
                "expected": finding.expected,
                "remedy": None if finding.remedy is None else
                {"kind": "profile" if finding.remedy.is_line else "command", "text": finding.remedy.text},
                "evidence": dict(finding.evidence),
            }
            for finding in report.findings
        ],
    }  # fmt: skip
