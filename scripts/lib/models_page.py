"""docs/models.md's tables, generated from the recipes that ship with envgen."""

from __future__ import annotations

from envgen.app.recipes import estimate_of
from envgen.recipes.read import Recipe
from envgen.recipes.shipped import shipped
from envgen.recipes.write import memory_of

BEGIN, END = "<!-- recipes: generated -->", "<!-- end of recipes -->"


def table() -> str:
    """One row a recipe: what it is and who ran it; then its memory."""
    rows = [
        "| recipe | model | vLLM | machines | run by others | read in |",
        "| --- | --- | --- | --- | --- | --- |",
        *map(_row, shipped().values()),
        "",
        "| recipe | weights | KV cache of one sequence | least | `needs_memory` | sequences that fit |",
        "| --- | --- | --- | --- | --- | --- |",
        *map(_memory, shipped().values()),
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
    return _cells(f"`{one.name}`", one.repo, release, str(one.nodes), one.ran or "no report read", source)


def _memory(one: Recipe) -> str:
    found, gib = estimate_of(one), 1 << 30
    if found is None or found.sequence is None or found.weights is None or found.least is None or found.room is None:
        return _cells(f"`{one.name}`", *["not known"] * 3, memory_of(one) or "not said", "not known")
    sizes = [f"{size / gib:.1f} GiB" for size in (found.weights, found.sequence, found.least)]
    sizes[1] += f" ({found.context} tokens)"
    return _cells(f"`{one.name}`", *sizes, memory_of(one) or "not said", f"{found.room / found.sequence:.1f}")


def _cells(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
