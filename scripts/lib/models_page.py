"""docs/models.md's table, generated from the recipes that ship with envgen."""

from __future__ import annotations

from envgen.app.recipes import shipped
from envgen.recipes.read import Recipe
from envgen.recipes.write import memory_of

BEGIN, END = "<!-- recipes: generated -->", "<!-- end of recipes -->"


def table() -> str:
    """One row a recipe."""
    rows = [
        "| recipe | model | vLLM | machines | weights | `needs_memory` | run by others | read in |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    return "\n".join([*rows, *map(_row, shipped().values())])


def renew(page: str) -> str:
    """``page`` with its table as the recipes are now. ValueError when the page has no place for it."""
    head, found, rest = page.partition(BEGIN)
    _, ends, tail = rest.partition(END)
    if not found or not ends:
        raise ValueError(f"the page lacks {BEGIN} or {END}")
    return f"{head}{BEGIN}\n\n{table()}\n\n{END}{tail}"


def _row(one: Recipe) -> str:
    release = f"{one.release} or newer" if one.release else "not said"
    source = f"{one.source} at `{one.commit[:12]}`" if one.commit else one.source
    cells = (f"`{one.name}`", one.repo, release, str(one.nodes), one.weights, memory_of(one) or "not said")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in (*cells, one.ran or "no report read", source)) + " |"
