"""`envgen cache list`, `why`, `baseline` and `modules`: what is there, what it was made of, and what was used."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import click

from envgen.app.session import Session
from envgen.cli.caches.print import (
    arch_option,
    open_cache,
    print_evidence,
    print_inventory,
    print_recorded,
    version_option,
)
from envgen.cli.common import json_option, print_json, project_options
from envgen.cli.look.explain import open_log
from envgen.errors import NotFoundError
from envgen.explain import log_lines
from envgen.inside.jit.main import named_in
from envgen.jitcache.place import make_query
from envgen.jitcache.service import Used
from envgen.text import progress, visible


@click.command("list")
@click.argument("patterns", nargs=-1, metavar="[NAME|GLOB]...")
@version_option
@arch_option
@json_option
@project_options
def list_(
    session: Session,
    patterns: tuple[str, ...],
    version: str | None,
    arch: str | None,
    as_json: bool,
) -> int:
    """Show every compiled module: size, objects, age, and whether it is being built.

    \b
    Examples:
      envgen cache list
      envgen cache list 'fused_moe_*' --arch 12.1a
      envgen cache list --version 0.5.3 --json
    """
    query = make_query(patterns, version, arch)
    inventory = open_cache(session).inventory(query)
    if as_json:
        print_json(asdict(inventory))
    else:
        print_inventory(inventory)
    return 0


@click.command("why")
@click.argument("patterns", nargs=-1, required=True, metavar="NAME|GLOB...")
@version_option
@arch_option
@json_option
@project_options
def why(session: Session, patterns: tuple[str, ...], version: str | None, arch: str | None, as_json: bool) -> int:
    """Say why a module is stale, or that it is not: reads every file that it was compiled from.

    Ends with 1 when a module is stale.

    \b
    Examples:
      envgen cache why fused_moe_120
      envgen cache why '*' --json
    """
    evidence = open_cache(session).inventory(make_query(patterns, version, arch), thorough=True)
    if as_json:
        print_json(asdict(evidence))
    else:
        print_evidence(evidence)
    return 1 if any(module.state == "stale" for module in evidence.modules) else 0


@click.command("baseline")
@click.argument("patterns", nargs=-1, metavar="[NAME|GLOB]...")
@version_option
@arch_option
@click.option("--force", is_flag=True, help="Also where files changed after it was compiled: you know better.")
@json_option
@project_options
def baseline(
    session: Session, patterns: tuple[str, ...], version: str | None, arch: str | None, force: bool, as_json: bool
) -> int:
    """Record the bytes of every file that modules were compiled from, so that `list` and `why` are certain.

    Ends with 1 when a module could not be recorded.

    \b
    Examples:
      envgen cache baseline
      envgen cache baseline page rope
    """
    recorded = open_cache(session).baseline(make_query(patterns, version, arch), force=force)
    if as_json:
        print_json(asdict(recorded))
    else:
        print_recorded(recorded)
    return 0 if all(module.recorded for module in recorded.modules) else 1


@click.command("modules")
@click.option(
    "--from-log", "log", is_flag=False, flag_value="", metavar="[FILE]",
    help="Those that this log names (`-`: stdin); without FILE: FlashInfer's own records in the cache.",
)  # fmt: skip
@json_option
@project_options
def modules(session: Session, log: str | None, as_json: bool) -> int:
    """Print the names of the modules that earlier runs used, as `cache warm` takes them: attention modules too.

    From FlashInfer's own records in the profile's cache: of all versions, and of modules that were cleared since. Or
    from a log of another machine: FlashInfer 0.7.2 names each module that it begins to build, and any release
    those whose build failed or was printed (FLASHINFER_JIT_VERBOSE).

    \b
    Examples:
      envgen cache warm $(envgen cache modules)
      envgen logs serve | envgen cache modules --from-log -
    """
    found = _from_log(log) if log else open_cache(session).used()
    for problem in found.problems:
        progress(f"left out: {visible(problem)}")
    if not found.names:
        raise NotFoundError(
            f"{log} names no module" if log else "no module was compiled or loaded in this cache yet",
            hint="name modules yourself: envgen cache warm fused_moe_120",
        )
    if as_json:
        print_json({"modules": found.names})
    else:
        click.echo("\n".join(map(visible, found.names)))
    return 0


def _from_log(log: str) -> Used:
    names: set[str] = set()
    with sys.stdin.buffer if log == "-" else open_log(Path(log)) as file:
        for line in log_lines(file):
            names |= named_in(line)
    return Used(tuple(sorted(names)))
