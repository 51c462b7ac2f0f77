"""`envgen cache gc`, `save` and `load`: whole namespaces."""

from __future__ import annotations

from pathlib import Path

import click

from envgen.app.session import Session
from envgen.cli.caches.print import age, open_cache, print_table
from envgen.cli.common import LARGEST, json_option, print_json, project_options
from envgen.jitcache.space import Moved
from envgen.jitcache.space import gc as collect
from envgen.jitcache.space import load as read
from envgen.jitcache.space import save as write
from envgen.text import counted, progress, size, visible


@click.command("gc")
@click.option(
    "--keep", type=click.IntRange(1, LARGEST), default=3, show_default=True, metavar="N", help="How many stay."
)
@click.option("-n", "--dry-run", is_flag=True, help="Show the plan; change nothing.")
@json_option
@project_options
def gc(session: Session, keep: int, dry_run: bool, as_json: bool) -> int:
    """Remove the namespaces of this profile that were not used for the longest time.

    Never the one that the profile uses now, never one that a container has mounted. Ends with 1 when one could not be
    removed.

    \b
    Examples:
      envgen cache gc --keep 2 --dry-run
      envgen cache gc --keep 2
    """
    found = collect(open_cache(session), keep, dry_run=dry_run)
    if as_json:
        print_json([vars(space) for space in found])
    else:
        rows = [("NAMESPACE", "SIZE", "MODULES", "LAST USED", "")]
        for space in found:
            used = "now, by " + ", ".join(space.users) if space.users else f"{age(space.used)} ago"
            word = ", ".join(part for part in ("current" if space.current else "", space.fate) if part)
            rows.append((space.key, size(space.bytes), str(space.libraries), used, word))
        if found:
            print_table(rows, right=(1, 2))
        gone = [space for space in found if space.fate in ("removed", "would go")]
        click.echo(f"{'would free' if dry_run else 'freed'} {size(sum(space.bytes for space in gone))}")
    return 1 if any(space.fate.startswith("not removed") for space in found) else 0


@click.command("save")
@click.argument("archive", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Replace FILE.")
@json_option
@project_options
def save(session: Session, archive: Path, force: bool, as_json: bool) -> int:
    """Write the whole cache into one archive, with times to the nanosecond: a restored one is not compiled again.

    Refused while a module is being built. Baselines that are missing are recorded first, where a service runs.

    \b
    Example:
      envgen cache save kernels.tar.gz
    """
    cache = open_cache(session)
    cache.record_missing(progress)
    return _tell(write(cache, archive, force=force), f"saved into {archive}", as_json)


@click.command("load")
@click.argument("archive", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Also what was compiled in another environment.")
@click.option("--replace", "replacing", is_flag=True, help="Remove modules of the same FlashInfer version for it.")
@click.option("-n", "--dry-run", is_flag=True, help="Check FILE and show what would go; change nothing.")
@json_option
@project_options
def load(session: Session, archive: Path, force: bool, replacing: bool, dry_run: bool, as_json: bool) -> int:
    """Put a saved cache into the profile's. Refused where modules of the same FlashInfer version are there already.

    The archive is unpacked aside and checked whole before anything is put in its place: links, devices and paths that
    lead out of the cache are refused.

    \b
    Examples:
      envgen cache load kernels.tar.gz
      envgen cache load kernels.tar.gz --replace --dry-run
    """
    moved = read(open_cache(session), archive, force=force, replacing=replacing, dry_run=dry_run)
    return _tell(moved, f"{'would load' if dry_run else 'loaded'} from {archive}", as_json)


def _tell(moved: Moved, what: str, as_json: bool) -> int:
    if as_json:
        print_json(vars(moved))
        return 0
    for problem in moved.problems:
        progress(visible(problem))
    if moved.replaced:
        shown = ", ".join(map(visible, moved.replaced[:5])) + (", ..." if len(moved.replaced) > 5 else "")
        progress(f"instead of {counted(len(moved.replaced), 'module')} of before: {shown}")
    where = f", namespace {moved.key}" if moved.key else ""
    click.echo(
        f"{what}: {counted(moved.modules, 'module')}, {size(moved.bytes)} in {counted(moved.files, 'file')}{where}"
    )
    return 0
