"""docs/explain.md's table, generated from the rules."""

from __future__ import annotations

from envgen.explain import Rule, filled, rules

BEGIN, END = "<!-- rules: generated -->", "<!-- end of rules -->"


def table() -> str:
    """One row a rule: its name, what it says, what to do, the log's kind, where to read on."""
    rows = ["| rule | cause | fix | logs | more |", "| --- | --- | --- | --- | --- |"]
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
    name = f"`{rule.rule}`" + (" (notice)" if rule.notice else "")
    cells = (name, filled(rule.cause), filled(rule.cure), ", ".join(sorted(rule.kinds)), f"[link]({rule.link})")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
