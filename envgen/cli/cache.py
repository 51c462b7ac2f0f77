"""`envgen cache`: list and clear compiled JIT modules."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from envgen.cli.common import Session, json_option, print_json, progress, project_options

if TYPE_CHECKING:
    from envgen.engine.base import Engine
    from envgen.jitcache.model import Cleared, Inventory, Module
    from envgen.jitcache.service import JitCache

HELP = {"help_option_names": ["-h", "--help"]}


@click.group(context_settings=HELP)
def command() -> None:
    """FlashInfer's JIT cache: what is compiled, and clearing one module at a time.

    \b
    Examples:
      envgen cache list
      envgen cache clear fused_moe_120
    """


version_option = click.option("--version", "version", metavar="V", help="Only this FlashInfer version, as listed.")
arch_option = click.option("--arch", metavar="A", help="Only this arch: 12.1a or 121a; `none`: without one.")


@command.command("list", context_settings=HELP)
@click.argument("patterns", nargs=-1, metavar="[NAME|GLOB]...")
@version_option
@arch_option
@json_option
@project_options
def list_(session: Session, patterns: tuple[str, ...], version: str | None, arch: str | None, as_json: bool) -> int:
    """Show every compiled module: size, objects, age, and whether it is being built.

    \b
    Examples:
      envgen cache list
      envgen cache list 'fused_moe_*' --arch 12.1a
      envgen cache list --version 0.5.3 --json
    """
    from envgen.jitcache.query import make_query

    query = make_query(patterns, version, arch)
    inventory = _cache(session).inventory(query)
    if as_json:
        _print_as_json(inventory)
    else:
        _print_inventory(inventory)
    return 0


@command.command("clear", context_settings=HELP)
@click.argument("patterns", nargs=-1, metavar="[NAME|GLOB]...")
@version_option
@arch_option
@click.option("--all", "everything", is_flag=True, help="Every module (that --version and --arch leave).")
@click.option("-n", "--dry-run", is_flag=True, help="Show the plan; change nothing.")
@click.option("-y", "--yes", is_flag=True, help="Don't ask before --all.")
@json_option
@project_options
def clear(
    session: Session,
    patterns: tuple[str, ...],
    version: str | None,
    arch: str | None,
    everything: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Remove compiled modules, and the sources generated for them; nothing else.

    Takes the lock that FlashInfer takes: a module that is being built is refused, and so is all that was named with it.

    \b
    Examples:
      envgen cache clear fused_moe_120
      envgen cache clear 'batch_decode_*' --version 0.5.3
      envgen cache clear 'fp4_gemm_*' --arch 12.1a --dry-run
      envgen cache clear --all --yes
    """
    from envgen.errors import UsageError
    from envgen.jitcache.query import make_query

    stars = [pattern for pattern in patterns if pattern and not pattern.strip("*")]
    if everything and patterns:
        raise UsageError("--all takes no names", hint="name modules, or say --all")
    if stars or not (patterns or everything):
        what = f"{stars[0]!r} means every module" if stars else "names no module"
        raise UsageError(f"cache clear: {what}", hint="name one as `envgen cache list` shows it, or say --all")
    query = make_query(patterns, version, arch)
    cache = _cache(session)
    if everything and not yes and not dry_run:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise UsageError("cache clear --all needs --yes when nobody can be asked", hint="add --yes or --dry-run")
        plan = cache.clear(query, everything=True, dry_run=True)
        _print_cleared(plan)
        click.confirm("Clear all of this?", abort=True, err=True)
    cleared = cache.clear(query, everything=everything, dry_run=dry_run)
    if as_json:
        _print_as_json(cleared)
    else:
        _print_cleared(cleared)
    return 1 if cleared.errors else 0


def _cache(session: Session) -> JitCache:
    """The cache of the chosen profile. The engine is asked for its version while the project file is read."""
    import threading

    from envgen.engine import docker

    found: list[Engine | BaseException] = []

    def connect() -> None:
        try:
            found.append(docker.connect())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    profile = session.profile()
    from envgen.jitcache.service import JitCache

    thread.join()
    engine = found[0]
    if isinstance(engine, BaseException):
        raise engine
    return JitCache(engine, profile, session.loaded().project.root)


# Printing


def _print_as_json(answer: Inventory | Cleared) -> None:
    from dataclasses import asdict

    print_json(asdict(answer))


def _print_inventory(inventory: Inventory) -> None:
    from envgen.jitcache.talk import describe_holders

    if inventory.place:
        progress(f"{inventory.root} in {inventory.place}")
    for problem in inventory.problems:
        progress(f"left out: {_visible(problem)}")
    if not inventory.modules:
        click.echo("no compiled modules" if inventory.exists else "no compiled modules: there is no cache yet")
    else:
        rows: list[tuple[str, ...]] = [("VERSION", "ARCH", "MODULE", "SIZE", "OBJECTS", "AGE", "STATE")]
        rows += [_row(module) for module in inventory.modules]
        _print_table(rows, right=(3, 4, 5))
        total = sum(module.bytes for module in inventory.modules)
        count = len(inventory.modules)
        click.echo(f"{count} module{'s' * (count != 1)}, {_size(total)}")
    for batch in inventory.building:
        where = "/".join(part for part in (batch.version, batch.arch) if part)
        click.echo(f"a batch build runs in {where}, {describe_holders(batch.holders)}")
    for other in inventory.others:
        click.echo(f"beside them: {other.name}, {_size(other.bytes)} in {other.files} files")
    if inventory.leftovers.count:
        click.echo(
            f"left behind by an interrupted clear: {_size(inventory.leftovers.bytes)}; the next clear deletes it"
        )


def _row(module: Module) -> tuple[str, ...]:
    from envgen.jitcache.talk import describe_holders

    if module.kind == "link":
        state = "link (not followed)"
    elif module.locked:
        state = f"locked {describe_holders(module.holders)}"
    elif module.unread:
        state = "unreadable"
    else:
        state = "" if module.built or module.kind != "ninja" else "no .so"
    state = state if module.locked is not None else f"{state} lock unreadable".strip()
    return (_visible(module.version), _visible(module.arch) or "-", _visible(module.name), _size(module.bytes),
            str(module.objects), _age(module.modified), state)  # fmt: skip


def _print_cleared(cleared: Cleared) -> None:
    verb = "would remove" if cleared.dry_run else "removed"
    progress(f"{cleared.root} in {cleared.place}")
    for target in cleared.modules:
        where = "/".join(part for part in (target.version, target.arch) if part)
        if target.gone or cleared.dry_run:
            click.echo(f"{verb} {_visible(target.name)} ({where}), {_size(target.bytes)} in {target.files} files")
        if target.damaged:
            progress(f"{_visible(target.name)} ({where}): its build.ninja is damaged; generated sources may remain")
        for path in target.outside:
            progress(f"left alone, outside of {where}/generated: {_visible(path)}")
    for item in cleared.generated:
        if item.gone or cleared.dry_run:
            click.echo(f"{verb} {_visible(item.path)}, {_size(item.bytes)} in {item.files} files")
    for kept in cleared.kept:
        click.echo(f"kept {_visible(kept.path)}: also compiled by {_names(kept.kept_for)}")
    for gone in cleared.vanished:
        progress(f"{_visible(gone.name)} was gone already")
    if cleared.leftovers.count:
        click.echo(f"{verb} what an interrupted clear had left behind, {_size(cleared.leftovers.bytes)}")
    if not cleared.modules and not cleared.vanished:
        click.echo("nothing to clear")
    freed = cleared.freed + (cleared.leftovers.bytes if cleared.dry_run else 0)
    click.echo(f"{'would free' if cleared.dry_run else 'freed'} {_size(freed)}")
    for error in cleared.errors:
        progress(f"could not remove {_visible(error)}")
    _print_users(cleared)


def _print_users(cleared: Cleared) -> None:
    """A process keeps the library that it has loaded; only a restart makes it compile and load the new one."""
    for name in cleared.restart:
        users = [user for user in cleared.users if user.where == name]
        modules = sorted({module for user in users for module in user.modules})
        pids = ", ".join(str(user.pid) for user in users)
        click.echo(f"restart {_visible(name)}: it still runs {_names(modules)} (pid {pids})")
    if cleared.unseen:
        progress(f"{cleared.unseen} processes or containers could not be looked into: restart those that use the cache")


def _print_table(rows: Sequence[tuple[str, ...]], right: Iterable[int]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [row[i].rjust(width) if i in right else row[i].ljust(width) for i, width in enumerate(widths)]
        click.echo("  ".join(cells).rstrip())


def _size(count: int) -> str:
    from envgen.profile.values import ByteSize

    return str(ByteSize(count))


def _age(modified: float) -> str:
    """How long ago, in one unit: 5m, 3h, 12d."""
    if not modified:
        return "-"
    seconds = max(0, int(time.time() - modified))
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def _names(names: Sequence[str]) -> str:
    shown = [_visible(name) for name in names[:5]]
    return ", ".join(shown) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _visible(text: Any) -> str:
    from envgen.jitcache.talk import visible

    return visible(str(text))
