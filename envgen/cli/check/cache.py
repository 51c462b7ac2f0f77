"""`envgen cache`: FlashInfer's compiled modules, in the profile's cache."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import click

from envgen.app.cluster.machines import head_of
from envgen.app.session import Session
from envgen.cli import FullGroup
from envgen.cli.check import cache_lines as shown
from envgen.cli.common import Count, answer, confirm, flag, option, reporting
from envgen.errors import NotFoundError, UsageError
from envgen.jitcache.place import Query
from envgen.jitcache.service import JitCache
from envgen.jitcache.warm import warm as compile_modules
from envgen.text import progress

patterns_argument = click.argument("patterns", nargs=-1, metavar="[NAME|GLOB]...")
dry_run_option = flag("-n, --dry-run", "Show what would be removed; change nothing.")


version_option = option("--version, version", "V", "Only this version, as `cache list` shows it.")


def asked(patterns: tuple[str, ...], version: str | None) -> Query:
    """What a command line selects."""
    if version == "":  # such as of a variable that is not set: it would mean every version
        hint = "write it as `envgen cache list` shows it: --version 0.5.3"
        raise UsageError("--version is empty", hint=hint)
    return Query(patterns, version or "")


def open_cache(session: Session) -> JitCache:
    """The cache of the chosen profile."""
    return JitCache(head_of(session.deployment()))


@click.group(cls=FullGroup)
def command() -> None:
    """List, explain, clear and compile the modules in FlashInfer's JIT cache.

    \b
    Examples:
      envgen cache why fused_moe_120
      envgen cache clear fused_moe_120
    """


@command.command("list")
@patterns_argument
@version_option
@reporting
def list_(session: Session, patterns: tuple[str, ...], version: str | None) -> int:
    """List the compiled modules of FlashInfer: size, objects, age, and whether each is stale or
    being built.

    Kernels in other caches of compiled code, such as CuTe DSL's and b12x's, are not listed.

    \b
    Example:
      envgen cache list 'fused_moe_*'
    """
    cache = open_cache(session)
    inventory = cache.inventory(asked(patterns, version))
    return answer(asdict(inventory), shown.inventory(inventory))


@command.command()
@click.argument("patterns", nargs=-1, required=True, metavar="NAME|GLOB|FILE...")
@version_option
@reporting
def why(session: Session, patterns: tuple[str, ...], version: str | None) -> int:
    """Explain why a module is stale, or confirm that it is not. FILE: the modules that were
    compiled from this source file, such as one that was edited just now.

    Reads every file that the module was compiled from. Exits with 1 if a module is stale.

    \b
    Examples:
      envgen cache why fused_moe_120
      envgen cache why ../flashinfer/include/flashinfer/page.cuh
      envgen cache why '*' --json
    """
    cache = open_cache(session)
    files = [word for word in patterns if "/" in word or Path(word).is_file()]
    names = tuple(word for word in patterns if word not in files)
    query = asked(names, version)
    ends = []
    for file in files:
        # A checkout is at another place in a container: a file's name and its folder's are enough.
        *_, folder, name = Path(file).resolve().parts
        ends.append(f"{folder}/{name}")
    inventory = cache.inventory(replace(query, files=tuple(ends)), thorough=True)
    if files and not inventory.modules:
        hint = "what is compiled from now on reads it as it is; `envgen cache list` has the rest"
        raise NotFoundError(f"no compiled module was made of {', '.join(files)}", hint=hint)
    is_stale = any(module.state == "stale" for module in inventory.modules)
    return answer(asdict(inventory), shown.evidence(inventory), is_stale)


@command.command()
@patterns_argument
@version_option
@flag("--stale", "All modules that are proven stale.")
@flag("--all, everything", "All modules, or all of --version.")
@dry_run_option
@flag("-y, --yes", "With --all, don't ask.")
@reporting
def clear(
    session: Session,
    patterns: tuple[str, ...],
    version: str | None,
    stale: bool,
    everything: bool,
    dry_run: bool,
    yes: bool,
) -> int:
    """Remove compiled modules and their generated sources.

    If one of the selected modules is being built, nothing is removed.

    \b
    Examples:
      envgen cache clear fused_moe_120
      envgen cache clear 'fp4_gemm_*' --dry-run
      envgen cache clear --stale
    """
    if everything and patterns:
        raise UsageError("--all takes no names", hint="remove the names, or --all")
    if everything and stale:
        raise UsageError("--all excludes --stale", hint="remove --all")
    stars = [pattern for pattern in patterns if pattern and not pattern.strip("*")]
    if stars or not (patterns or everything or stale):  # nothing means all modules but --all
        what = f"{stars[0]!r} means every module" if stars else "no module named"
        raise UsageError(
            f"cache clear: {what}",
            hint="name modules as `envgen cache list` shows them, or add --all",
        )
    query = asked(patterns, version)
    cache = open_cache(session)
    cache.deployment.require_name()
    if everything:
        cache.require_own()
    if everything and not yes and not dry_run:
        lines = shown.cleared(cache.clear(query, everything=True, dry_run=True))
        confirm("cache clear --all", "Clear all of this?", lines)
    done = cache.clear(query, everything=everything, dry_run=dry_run, stale=stale)
    return answer(asdict(done), shown.cleared(done), bool(done.errors))


@command.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@option("-j, --jobs", "N", "At most N compilers at once (default: build.max_jobs).", type=Count(1))
@reporting
def warm(session: Session, names: tuple[str, ...], jobs: int | None) -> int:
    """Compile modules with FlashInfer's own build (default: those that are incomplete or stale).

    Runs in a running service, or else in a temporary container. Use it before a model takes the
    memory. Each compiler waits until enough memory is free. Stale modules are cleared first.
    Attention modules need their full names. Records what each module was compiled from: later
    answers of `cache list` and `cache why` are then certain. Exits with 1 if a module could not be
    compiled.

    \b
    Example:
      envgen cache warm fused_moe_120 page --jobs 4
    """
    cache = open_cache(session)
    wanted = jobs if jobs is not None else cache.deployment.profile.build.max_jobs.count
    built, recorded = compile_modules(cache, names, wanted, progress)
    records = recorded.modules if recorded else ()
    baselines = {record.name for record in records if record.recorded}
    rows = []
    for module in built:
        row = {**vars(module), "baseline": module.name in baselines}
        del row["lines"]
        rows.append(row)
    failed = any(module.outcome not in ("done", "fresh", "masked") for module in built)
    return answer({"modules": rows}, shown.built(built, recorded), failed)
