"""`envgen prune`: show and remove leftovers of earlier runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from envgen.app.prune import Item, find, held_elsewhere, remove
from envgen.app.session import Session
from envgen.cli.common import answer, confirm, flag, reporting, wants_json
from envgen.engine.client import connect
from envgen.text import counted, progress, size, table, visible


@click.command("prune")
@flag("-n, --dry-run", "Show what would be removed; change nothing.")
@flag("-y, --yes", "Don't ask.")
@reporting
def command(session: Session, dry_run: bool, yes: bool) -> int:
    """Remove leftovers of earlier and killed runs from the engine and the project folder.

    Leftovers are temporary containers, untagged images, caches and kernels of earlier releases and
    broken-off upgrades after a month, parts of downloads after a week, and old logs and crash
    bundles but for the newest. What `upgrade --back` needs stays. Shows the list and asks first.
    Exits with 1 if something could not be removed.

    \b
    Examples:
      envgen prune --dry-run
      envgen prune --yes
    """
    project = session.loaded().project
    engine = connect()
    items = list(find(engine, project))
    for name, other in held_elsewhere(engine, project).items():
        progress(
            f"note: profile {name} belongs to {other}, not to {project.root}: nothing under its name is touched"
        )
    if (cached := engine.disk()[1]) and not wants_json():
        progress(f"note: `docker builder prune` would free {size(cached)} of Docker's build cache")
    if dry_run:
        return _show(items, None)
    if items and not yes:
        confirm("prune", "Remove all of this?", _table(items))
    return _show(items, remove(items))


def _show(items: Sequence[Item], failures: Sequence[str] | None) -> int:
    """Print what was removed (``failures``: why each stayed, or ""); None: what would be."""
    reasons = failures or [""] * len(items)
    freed = sum(item.bytes for item, reason in zip(items, reasons, strict=True) if not reason)
    rows = [
        {
            "kind": item.kind,
            "name": item.name,
            "bytes": item.bytes,
            "why": item.why,
            "removed": failures is not None and not reason,
            "left": reason,
        }
        for item, reason in zip(items, reasons, strict=True)
    ]

    def lines() -> Iterator[str]:
        if failures is None and items:
            yield from _table(items)
        for item, reason in zip(items, reasons, strict=True):
            if reason:
                progress(f"not removed: {item.kind} {visible(item.name)}: {visible(reason)}")
        verb = "would remove" if failures is None else "removed"
        yield (
            f"{verb} {counted(reasons.count(''), 'item')}, {size(freed)}"
            if items
            else "nothing to prune"
        )

    return answer({"items": rows, "bytes": freed}, lines(), any(reasons))


def _table(items: Sequence[Item]) -> list[str]:
    rows = [(item.kind, item.name, size(item.bytes), item.why) for item in items]
    return table([("KIND", "NAME", "SIZE", "WHY"), *rows], right=(2,))
