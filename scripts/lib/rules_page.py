"""docs/explain.md's table, generated from the rules."""

from __future__ import annotations

import re

from envgen.explain import Rule, filled, rules
from envgen.explain.line import read_line
from envgen.text import shorten

LONGEST = 70  # characters of a line
# A process's name, and the prefix of its logger.
_PREFIX = re.compile(
    r"^(?:\([\w ./:]{1,60}pid=\d+[^)]{0,40}\) )*(?:[A-Z]{4,8} [\d-]{5} [\d:]{8} \[?[\w./]+:\d+\] )?"
)
BEGIN, END = "<!-- rules: generated -->", "<!-- end of rules -->"


def table() -> str:
    """One row a rule: its name, a line of a log, and the beginning of what it says; the command has
    the rest.
    """
    rows = ["| rule | in the log | cause |", "| --- | --- | --- |"]
    rows += [_row(rule) for rule in rules()]
    return "\n".join(rows)


def renew(page: str) -> str:
    """``page`` with its table as the rules are now. ValueError when the page has no place for it."""
    head, found, rest = page.partition(BEGIN)
    _, ends, tail = rest.partition(END)
    if not found or not ends:
        raise ValueError(f"the page lacks {BEGIN} or {END}")
    return f"{head}{BEGIN}\n\n{table()}\n\n{END}{tail}"


def _row(rule: Rule) -> str:
    name = f"[`{rule.rule}`]({rule.link})" + (" (notice)" if rule.notice else "")
    seen = next(
        line
        for line in rule.example.splitlines()
        if any(p.expression.search(read_line(line)[2]) for p in rule.patterns)
    )
    seen = _PREFIX.sub("", seen.strip()).replace("`", "'")
    cells = (name, f"`{shorten(seen, LONGEST)}`", re.split(r"[;:] ", filled(rule.cause))[0])
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
