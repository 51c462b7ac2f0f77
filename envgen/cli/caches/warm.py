"""`envgen cache warm`: progress, and how it went."""

from __future__ import annotations

import click

from envgen.app.session import Session
from envgen.cli.caches.print import open_cache
from envgen.cli.common import LARGEST, json_option, print_json, project_options
from envgen.engine.host import compilers
from envgen.jitcache.place import make_query
from envgen.jitcache.service import Recorded
from envgen.jitcache.warm import Built
from envgen.jitcache.warm import warm as compile_modules
from envgen.text import progress

SAID = {
    "done": "compiled",
    "masked": "not compiled: a prebuilt library wins",
    "unknown": "not compiled: no generator of this FlashInfer takes its name alone; its first use compiles it",
    "failed": "failed",
}


@click.command("warm")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("-j", "--jobs", type=click.IntRange(1, LARGEST), metavar="N", help="At most N compilers at once.")
@json_option
@project_options
def warm(session: Session, names: tuple[str, ...], jobs: int | None, as_json: bool) -> int:
    """Compile modules by FlashInfer's own build; without names: what is partial or stale.

    In a running service, else in a throw-away container of the image: kernels are ready before a model takes the
    memory. Each compiler starts when its memory is free. Attention modules go by their full names. What is proven
    stale is cleared first. Records a baseline. Ends with 1 when a module could not be compiled.

    \b
    Examples:
      envgen cache warm
      envgen cache warm fused_moe_120 page --jobs 4
    """
    make_query(names, None, None)  # refuses paths
    cache = open_cache(session)
    wanted = jobs if jobs is not None else cache.profile.build.max_jobs.count
    progress(compilers(wanted, cache.engine.info()))
    built, recorded = compile_modules(cache, names, wanted, progress)
    if as_json:
        print_json({"modules": [_as_json(one, recorded) for one in built]})
    else:
        for one in built:
            _print(one, recorded)
        if not built:
            click.echo("nothing to compile: no module is partial or stale")
    return 0 if all(one.outcome in ("done", "masked") for one in built) else 1


def _print(built: Built, recorded: Recorded | None) -> None:
    took = f" in {built.seconds:.1f}s" if built.outcome == "done" else ""
    click.echo(f"{built.name}: {SAID.get(built.outcome, built.outcome)}{took}")
    for line in built.error.splitlines():
        click.echo(f"    {line}")
    refused = [r for r in recorded.modules if r.name == built.name and not r.recorded] if recorded else []
    for record in refused:
        progress(f"{built.name}: no baseline recorded, {record.reason}: {', '.join(record.changed[:3])}")


def _as_json(built: Built, recorded: Recorded | None) -> dict[str, object]:
    baseline = any(record.name == built.name and record.recorded for record in recorded.modules) if recorded else False
    return {"name": built.name, "outcome": built.outcome, "seconds": built.seconds,
            "killed": built.killed, "error": built.error, "baseline": baseline}  # fmt: skip
