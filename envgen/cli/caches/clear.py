"""`envgen cache clear`: by name, or by cause."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from envgen.app import whose
from envgen.app.session import Session
from envgen.cli.caches.print import arch_option, open_cache, print_cleared, version_option
from envgen.cli.common import json_option, print_json, project_options
from envgen.errors import UsageError
from envgen.jitcache.place import Query, changed_files, make_query, seconds
from envgen.jitcache.service import JitCache


@click.command("clear")
@click.argument("patterns", nargs=-1, metavar="[NAME|GLOB]...")
@version_option
@arch_option
@click.option("--stale", is_flag=True, help="What is proven stale.")
@click.option("--guessed", is_flag=True, help="And what is stale by a guess: `list` shows it as stale?.")
@click.option("--foreign", is_flag=True, help="What this environment's version and arch will never use.")
@click.option("--older-than", metavar="AGE", help="What was built longer ago: 30d, 12h, 45m.")
@click.option(
    "--changed",
    metavar="REV",
    is_flag=False,
    flag_value="HEAD",
    default=None,
    help="What is compiled from files of the mounted checkout that differ from REV (HEAD when left out).",
)
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
    stale: bool,
    guessed: bool,
    foreign: bool,
    older_than: str | None,
    changed: str | None,
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
      envgen cache clear --stale
      envgen cache clear --changed=main
      envgen cache clear --all --yes
    """
    by_cause = stale or guessed or foreign or older_than is not None or changed is not None
    _check(patterns, everything, by_cause)
    query = make_query(patterns, version, arch)
    causes: dict[str, Any] | None = None
    if by_cause:
        causes = {"stale": stale or guessed, "guessed": guessed, "foreign": foreign}
        causes.update(_more_causes(session, older_than, changed))
    cache = _ours(open_cache(session))
    if everything and not yes and not dry_run:
        _confirm(cache, query)
    cleared = cache.clear(query, everything=everything, dry_run=dry_run, causes=causes)
    if as_json:
        print_json(asdict(cleared))
    else:
        print_cleared(cleared)
    return 1 if cleared.errors else 0


def _ours(cache: JitCache) -> JitCache:
    """``cache``, unless another folder or user has the profile's name (RefusedError)."""
    whose.demand(cache.engine, cache.profile, cache.root)
    return cache


def _check(patterns: Sequence[str], everything: bool, by_cause: bool) -> None:
    """UsageError for words that contradict each other, or that mean everything without saying so."""
    if everything and patterns:
        raise UsageError("--all takes no names", hint="name modules, or say --all")
    if everything and by_cause:
        raise UsageError("--all leaves nothing to choose by cause", hint="leave one of them out")
    stars = [pattern for pattern in patterns if pattern and not pattern.strip("*")]
    if stars or not (patterns or everything or by_cause):
        what = f"{stars[0]!r} means every module" if stars else "names no module"
        raise UsageError(f"cache clear: {what}", hint="name one as `envgen cache list` shows it, or say --all")


def _more_causes(session: Session, older_than: str | None, changed: str | None) -> dict[str, Any]:
    """The causes that take a value: an age in seconds, and the files of the checkout that differ from a revision."""
    found: dict[str, Any] = {"older_than": None if older_than is None else seconds(older_than)}
    if changed is not None:
        found["changed"] = list(changed_files(session.profile(), session.loaded().project.root, changed))
    return found


def _confirm(cache: JitCache, query: Query) -> None:
    """Show what would go, and ask. UsageError without a terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("cache clear --all needs --yes when stdin is not a terminal", hint="add --yes or --dry-run")
    print_cleared(cache.clear(query, everything=True, dry_run=True))
    click.confirm("Clear all of this?", abort=True, err=True)
