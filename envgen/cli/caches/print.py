"""What `envgen cache` prints: tables, plans, evidence."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import click

from envgen.app.places import at
from envgen.app.session import Session
from envgen.inside.jit.judge import Module
from envgen.jitcache.service import Cleared, Inventory, JitCache, Recorded, describe_holders
from envgen.text import counted, duration, progress, size, table, visible

# What `list` says in one word about each kind of evidence.
CAUSES = {
    "bytes": "other bytes",
    "missing": "files gone",
    "ctime": "files changed",
    "root": "another package",
    "flags": "other flags",
    "cuda_home": "CUDA_HOME",
    "arch": "other GPU",
    "record": "damaged record",
    "touched": "touched files",
    "switches": "other switches",
}


def print_inventory(inventory: Inventory) -> None:
    if inventory.place:
        progress(f"{inventory.root} in {inventory.place}")
    for problem in inventory.problems:
        progress(f"left out: {visible(problem)}")
    if not inventory.modules:
        click.echo("no compiled modules" if inventory.exists else "no compiled modules: there is no cache yet")
    else:
        rows: list[tuple[str, ...]] = [("VERSION", "ARCH", "MODULE", "SIZE", "OBJECTS", "AGE", "STATE")]
        rows += [_row(module) for module in inventory.modules]
        print_table(rows, right=(3, 4, 5))
        total = sum(module.bytes for module in inventory.modules)
        count = len(inventory.modules)
        click.echo(f"{count} module{'s' * (count != 1)}, {size(total)}")
        if any(module.guess for module in inventory.modules):
            click.echo("? = a guess by times of change; `envgen cache baseline` makes later answers certain")
    for batch in inventory.building:
        where = "/".join(part for part in (batch.version, batch.arch) if part)
        click.echo(f"a batch build runs in {where}, {describe_holders(batch.holders)}")
    if inventory.leftovers.count:
        click.echo(f"left behind by an interrupted clear: {size(inventory.leftovers.bytes)}; the next clear deletes it")


def _row(module: Module) -> tuple[str, ...]:
    if module.kind == "link":
        state = "link (not followed)"
    elif module.locked:
        state = f"building, locked {describe_holders(module.holders)}"
    elif module.unread:
        state = "unreadable"
    elif module.state == "partial":
        state = "partial, no .so"
    else:
        state = _state(module.state, guess=module.guess)
        words = sorted({CAUSES[one.kind] for one in module.reasons if one.kind in CAUSES})
        state += f": {', '.join(words)}" if words and module.state in ("stale", "fresh") else ""
    state = state if module.locked is not None else f"{state} lock unreadable".strip()
    return (visible(module.version), visible(module.arch) or "-", visible(module.name), size(module.bytes),
            str(module.objects), age(module.modified), state)  # fmt: skip


def print_cleared(cleared: Cleared) -> None:
    verb = "would remove" if cleared.dry_run else "removed"
    progress(f"{cleared.root} in {cleared.place}")
    for target in cleared.modules:
        where = "/".join(part for part in (target.version, target.arch) if part)
        if target.gone or cleared.dry_run:
            why = f": {visible(target.why)}" if target.why else ""
            taken = f"{size(target.bytes)} in {counted(target.files, 'file')}"
            click.echo(f"{verb} {visible(target.name)} ({where}), {taken}{why}")
        if target.damaged:
            progress(f"{visible(target.name)} ({where}): its build.ninja is damaged; generated sources may remain")
    for item in cleared.generated:
        if item.kept_for:
            click.echo(f"kept {visible(item.path)}: also compiled by {_names(item.kept_for)}")
        elif item.gone or cleared.dry_run:
            click.echo(f"{verb} {visible(item.path)}, {size(item.bytes)} in {counted(item.files, 'file')}")
    if cleared.leftovers.count:
        click.echo(f"{verb} what an interrupted clear had left behind, {size(cleared.leftovers.bytes)}")
    if not cleared.modules:
        click.echo("nothing to clear")
    freed = cleared.freed + (cleared.leftovers.bytes if cleared.dry_run else 0)
    click.echo(f"{'would free' if cleared.dry_run else 'freed'} {size(freed)}")
    if cleared.guesses:
        progress(f"left alone, stale only by a guess: {_names(cleared.guesses)}; add --guessed to clear them too")
    for error in cleared.errors:
        progress(f"could not remove {visible(error)}")
    _print_users(cleared)


def _print_users(cleared: Cleared) -> None:
    """A process keeps the library that it has loaded; only a restart makes it compile and load the new one."""
    for name in cleared.restart:
        users = [user for user in cleared.users if user.where == name]
        modules = sorted({module for user in users for module in user.modules})
        pids = ", ".join(str(user.pid) for user in users)
        click.echo(f"restart {visible(name)}: it still runs {_names(modules)} (pid {pids})")
    if cleared.unseen:
        progress(f"{cleared.unseen} processes or containers could not be looked into: restart those that use the cache")


def _state(state: str, *, guess: bool) -> str:
    return f"{state}?" if guess else "-" if state == "unknown" else state


def print_table(rows: Sequence[tuple[str, ...]], right: Iterable[int]) -> None:
    click.echo("\n".join(table(rows, right=right)))


def age(modified: float) -> str:
    """How long ago, in one unit: 5m, 3h, 12d."""
    return duration(time.time() - modified) if modified else "-"


def _names(names: Sequence[str]) -> str:
    shown = [visible(name) for name in names[:5]]
    return ", ".join(shown) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def print_evidence(evidence: Inventory) -> None:
    """Each module with its state and everything that speaks against it."""
    progress(f"{evidence.root} in {evidence.place}")
    package = evidence.package
    progress(f"imported: FlashInfer {package.version} from {package.root}" if package.root else "imported: none found")
    for module in evidence.modules:
        _print_why(module)


def _print_why(module: Module) -> None:
    where = "/".join(part for part in (module.version, module.arch) if part)
    click.echo(f"{visible(module.name)} ({where}): {_state(module.state, guess=module.guess)}")
    for reason in module.reasons:
        count = len(reason.files) + reason.more
        files = f"{count} file{'s' * (count != 1)}: " if count else ""
        click.echo(f"  {files}{visible(reason.message)}")
        for path in reason.files[:10]:
            click.echo(f"    {visible(path)}")
        if count > 10:
            click.echo(f"    and {count - 10} more")
    if module.state == "fresh" and module.baseline == "recorded":
        click.echo(f"  every file has the bytes that it was compiled from ({module.checked})")
    elif module.baseline != "recorded" and module.kind == "ninja" and module.state != "partial":
        what = "its baseline is of an earlier build" if module.baseline == "outdated" else "no baseline was recorded"
        click.echo(f"  {what}: {counted(module.checked, 'file')} judged by their times of change, a guess")
    if module.state in ("stale", "debug"):
        click.echo(f"  cure: envgen cache clear {visible(module.name)}")


def print_recorded(recorded: Recorded) -> None:
    """What was recorded, and what was not and why."""
    progress(f"{recorded.root} in {recorded.place}")
    for module in recorded.modules:
        where = "/".join(part for part in (module.version, module.arch) if part)
        if module.recorded:
            click.echo(f"recorded {visible(module.name)} ({where}): {counted(module.files, 'file')}")
            continue
        click.echo(f"not recorded {visible(module.name)} ({where}): {visible(module.reason)}")
        for path in module.changed[:5]:
            click.echo(f"    {visible(path)}")


version_option = click.option("--version", "version", metavar="V", help="Only this FlashInfer version, as listed.")
arch_option = click.option("--arch", metavar="A", help="Only this arch: 12.1a or 121a; `none`: without one.")


def open_cache(session: Session) -> JitCache:
    """The cache of the chosen profile."""
    there = at(session.profile())
    return JitCache(there.connect(), there.profile, session.loaded().project.root)
