"""docs/doctor.md: the part that lists every check and every finding, from the checks themselves."""

from __future__ import annotations

from envgen.doctor.checks import CHECKS
from envgen.doctor.model import Check, Severity, Where
from envgen.doctor.report import HEADINGS

BEGIN = "<!-- generated from the checks by scripts/regenerate -->"
END = "<!-- end of the generated part -->"


def cell(text: str) -> str:
    """Text for one cell of a Markdown table."""
    return text.replace("|", "\\|").replace("\n", " ")


def one(check: Check) -> list[str]:
    """A check: what it asks, and a table of what it finds."""
    lines = [f"#### `{check.id}`: {check.title}", "", check.about, ""]
    if not check.says:
        return [*lines, "Finds nothing wrong: it lists.", ""]
    lines += ["| case | | what | why it matters | cure |", "| --- | --- | --- | --- | --- |"]
    for says in check.says:
        cure = says.cure if says.severity > Severity.INFO else "-"
        words = (f"`{says.case}`", says.severity.word, says.what, says.why, cure)
        lines.append("| " + " | ".join(map(cell, words)) + " |")
    return [*lines, ""]


def findings() -> str:
    """The whole part, between its two marks."""
    lines = [BEGIN, "", f"{len(CHECKS)} checks, {sum(len(check.says) for check in CHECKS)} findings.", ""]
    for where in Where:
        lines += [f"### {HEADINGS[where]}", ""]
        for check in CHECKS:
            if check.where is where:
                lines += one(check)
    return "\n".join([*lines, END])


def page(text: str) -> str:
    """The page with that part as it should be. ValueError: the page has no such part."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks {BEGIN} or {END}")
    return head + findings() + tail
