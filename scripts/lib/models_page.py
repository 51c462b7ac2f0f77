"""docs/models.md's tables, generated from the recipes that ship with envgen."""

from __future__ import annotations

from envgen.recipes.read import Recipe
from envgen.recipes.shipped import shipped
from envgen.recipes.write import memory_of

BEGIN, END = "<!-- recipes: generated -->", "<!-- end of recipes -->"


def table() -> str:
    """One row a recipe: what it is, its memory, and who ran it."""
    rows = [
        "| recipe | model | vLLM | machines | weights | `needs_memory` | run by others | read in |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        *map(_row, shipped().values()),
    ]
    return "\n".join(rows)


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
    memory = (one.weights or "not said", memory_of(one) or "not said")
    return _cells(
        f"`{one.name}`",
        one.repo,
        release,
        str(one.nodes),
        *memory,
        one.ran or "no report read",
        source,
    )


def _cells(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
