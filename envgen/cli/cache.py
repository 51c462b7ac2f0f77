"""`envgen cache`: list compiled JIT modules, explain their state, clear them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from envgen.cli.common import Session, json_option, project_options

if TYPE_CHECKING:
    from envgen.engine.base import Engine
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
    from envgen.cli.cache_print import print_as_json, print_inventory

    if as_json:
        print_as_json(inventory)
    else:
        print_inventory(inventory)
    return 0


@command.command("clear", context_settings=HELP)
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
    from envgen.errors import UsageError
    from envgen.jitcache.query import make_query

    stars = [pattern for pattern in patterns if pattern and not pattern.strip("*")]
    if everything and patterns:
        raise UsageError("--all takes no names", hint="name modules, or say --all")
    by_cause = stale or guessed or foreign or older_than is not None or changed is not None
    if everything and by_cause:
        raise UsageError("--all leaves nothing to choose by cause", hint="leave one of them out")
    if stars or not (patterns or everything or by_cause):
        what = f"{stars[0]!r} means every module" if stars else "names no module"
        raise UsageError(f"cache clear: {what}", hint="name one as `envgen cache list` shows it, or say --all")
    query = make_query(patterns, version, arch)
    causes: dict[str, Any] | None = None
    if by_cause:
        from envgen.jitcache.query import seconds

        causes = {"stale": stale or guessed, "guessed": guessed, "foreign": foreign}
        causes["older_than"] = None if older_than is None else seconds(older_than)
        if changed is not None:
            from envgen.jitcache.changed import changed_files

            causes["changed"] = list(changed_files(session.profile(), session.loaded().project.root, changed))
    cache = _cache(session)
    if everything and not yes and not dry_run:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise UsageError("cache clear --all needs --yes when nobody can be asked", hint="add --yes or --dry-run")
        from envgen.cli.cache_print import print_cleared

        plan = cache.clear(query, everything=True, dry_run=True)
        print_cleared(plan)
        click.confirm("Clear all of this?", abort=True, err=True)
    cleared = cache.clear(query, everything=everything, dry_run=dry_run, causes=causes)
    from envgen.cli.cache_print import print_as_json, print_cleared

    if as_json:
        print_as_json(cleared)
    else:
        print_cleared(cleared)
    return 1 if cleared.errors else 0


@command.command("why", context_settings=HELP)
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
    from envgen.jitcache.query import make_query

    evidence = _cache(session).why(make_query(patterns, version, arch))
    from envgen.cli.cache_print import print_as_json, print_evidence

    if as_json:
        print_as_json(evidence)
    else:
        print_evidence(evidence)
    return 1 if any(module.state == "stale" for module in evidence.modules) else 0


@command.command("baseline", context_settings=HELP)
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
    from envgen.jitcache.query import make_query

    recorded = _cache(session).baseline(make_query(patterns, version, arch), force=force)
    from envgen.cli.cache_print import print_as_json, print_recorded

    if as_json:
        print_as_json(recorded)
    else:
        print_recorded(recorded)
    return 0 if all(module.recorded for module in recorded.modules) else 1


@command.command("warm", context_settings=HELP)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("-j", "--jobs", type=click.IntRange(1), metavar="N", help="Compilers at once (default: as for builds).")
@json_option
@project_options
def warm(session: Session, names: tuple[str, ...], jobs: int | None, as_json: bool) -> int:
    """Compile modules inside a running service, by FlashInfer's own build; without names: what is partial or stale.

    What is proven stale is cleared first. Records a baseline. Ends with 1 when a module could not be compiled.

    \b
    Examples:
      envgen cache warm
      envgen cache warm fused_moe_120 page --jobs 4
    """
    from envgen.cli.cache_warm import run
    from envgen.jitcache.query import make_query

    make_query(names, None, None)  # refuses paths
    return run(_cache(session), names, jobs, as_json)


@command.command("audit", context_settings=HELP)
@json_option
@project_options
def audit(session: Session, as_json: bool) -> int:
    """Show which GPU code each library really holds: of the cache, vLLM, flash-attn, and what Triton's ptxas knows.

    Ends with 1 when the profile's GPU can't run one of them.

    \b
    Example:
      envgen cache audit
    """
    from envgen.cli.cache_audit import run

    return run(_cache(session), as_json)


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
