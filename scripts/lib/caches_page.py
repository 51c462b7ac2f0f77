"""docs/jit-cache.md's table, generated from the caches that envgen knows."""

from __future__ import annotations

from envgen.profile.caches import FLASHINFER, KNOWN, KnownCache

BEGIN, END = "<!-- caches: generated -->", "<!-- end of caches -->"


def table() -> str:
    """One row for each other cache of code that is compiled at run time, and one for the driver's
    own.
    """
    rows = [_row(one) for one in KNOWN.values() if one.compiles and one is not FLASHINFER]
    head = [
        "| name in `caches` | used by | default place | variable |",
        "| --- | --- | --- | --- |",
    ]
    return "\n".join(
        [*head, *rows, "| - | the driver | `~/.nv/ComputeCache` | `CUDA_CACHE_PATH` |"]
    )


def renew(page: str) -> str:
    """``page`` with its table as the caches are now. ValueError when the page has no place for it."""
    head, found, rest = page.partition(BEGIN)
    _, ends, tail = rest.partition(END)
    if not found or not ends:
        raise ValueError(f"the page lacks {BEGIN} or {END}")
    return f"{head}{BEGIN}\n\n{table()}\n\n{END}{tail}"


def _row(one: KnownCache) -> str:
    variables = ", ".join(f"`{name}`" for name in one.variables)
    return f"| `{one.name}` | {one.compiles} | {one.default} | {variables} |"
