"""`--kind` of `envgen cache list` and `clear`: the caches of vLLM, Triton, Inductor and others beside FlashInfer's."""

from __future__ import annotations

from collections.abc import Sequence

import click

from envgen.cli.caches.print import age, print_table
from envgen.cli.common import print_json
from envgen.errors import UsageError
from envgen.inside.jit.kinds import KINDS
from envgen.jitcache.kinds import Kind, kinds
from envgen.jitcache.service import JitCache
from envgen.text import counted, progress, size, visible

ALL = "all"

list_option = click.option("--kind", "kinds", multiple=True, type=click.Choice([*KINDS, ALL]), metavar="KIND",
                           help=f"Another cache instead: {', '.join(KINDS)}; or all of them.")  # fmt: skip
clear_option = click.option("--kind", "kinds", multiple=True, type=click.Choice(list(KINDS)), metavar="KIND",
                            help="Another cache instead: vllm, triton, inductor.")  # fmt: skip


def only_kinds(patterns: Sequence[str], version: str | None, arch: str | None, more: bool = False) -> None:
    """UsageError for options about modules: those caches have none."""
    if patterns or version is not None or arch is not None or more:
        raise UsageError("--kind takes no modules, versions, archs or causes", hint="leave them or --kind out")


def show(cache: JitCache, wanted: Sequence[str], as_json: bool) -> int:
    """One line a cache, with the variable that moves it."""
    found = kinds(cache, () if ALL in wanted else wanted)
    if as_json:
        print_json([vars(one) for one in found])
        return 0
    rows: list[tuple[str, ...]] = [("KIND", "SIZE", "FILES", "AGE", "PLACE", "MOVED BY")]
    for one in found:
        moved = f"{one.moved_by} (set)" if one.moved_by else " or ".join(one.variables)
        sized = (size(one.bytes), str(one.files), age(one.modified)) if one.exists else ("-", "-", "-")
        rows.append((one.kind, *sized, visible(one.path), moved))
        if one.problem:
            progress(f"{one.kind}: {visible(one.problem)}")
    print_table(rows, right=(1, 2, 3))
    return 0


def clear(cache: JitCache, wanted: Sequence[str], dry_run: bool, as_json: bool) -> int:
    """Remove the entries of these caches. Ends with 1 when something could not be removed."""
    found = kinds(cache, wanted, clear=True, dry_run=dry_run)
    if as_json:
        print_json([vars(one) for one in found])
    else:
        for one in found:
            _tell(one, dry_run)
    return 1 if any(one.errors for one in found) else 0


def _tell(one: Kind, dry_run: bool) -> None:
    verb = "would remove" if dry_run else "removed"
    if one.entries:
        entries = counted(len(one.entries), "entry", "entries")
        click.echo(f"{verb} {entries} of {one.kind} in {visible(one.path)}, {size(one.bytes)}")
    else:
        click.echo(f"{one.kind}: nothing to clear in {visible(one.path)}")
    if one.others:
        progress(f"left alone, no entries of {one.kind}: {', '.join(map(visible, one.others[:5]))}")
    for error in one.errors:
        progress(f"could not remove {visible(error)}")
