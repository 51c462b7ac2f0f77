"""`envgen verify`: build twice without cache, and say whether the same bytes came out."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envgen import files
from envgen.cli.common import Session, json_option, print_json, progress, project_options
from envgen.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envgen.cli.build_plan import Job
    from envgen.engine.base import Engine
    from envgen.engine.buildx import BuildRequest, BuildResult
    from envgen.lock.imagediff import Difference

SHOWN = 40


@click.command()
@project_options
@click.option("--max-jobs", type=click.IntRange(1, 9999), metavar="N", help="Compilers at once.")
@json_option
def command(session: Session, max_jobs: int | None, as_json: bool) -> int:
    """Build the image of a profile twice without cache, from two folders, and compare the image IDs.

    Where they differ, each difference is named: layer, path, field (exit code 1). Images of this command are removed
    again; the profile's own image stays as it is. On another machine compare the printed ID, which is the same where
    lock, base image and the engine's image store are.

    \b
    Example:
      envgen verify -p prod
    """
    from envgen.cli.build_lock import choose, demand
    from envgen.cli.build_plan import job_of, jobs_of, request_of
    from envgen.engine.docker import connect
    from envgen.errors import UsageError
    from envgen.render.workspace import prepare

    profile, root = session.profile(), session.loaded().project.root
    lock = choose(profile, root, unlocked=False)
    if lock is None:
        raise UsageError("there is no envgen.lock, so no two builds need be alike", hint="`envgen lock`")
    engine = connect()
    demand(profile, root, engine, lock, unlocked=False)
    job = job_of(profile, root, lock)
    prepare(profile, root, lock)
    request = request_of(job, jobs_of(profile, engine, max_jobs), no_cache=True)
    names = [f"envgen-verify-{profile.compose_name}:{number}" for number in (1, 2)]
    try:
        results = _twice(job, request, names)
        ids = [result.image_id for result in results]
        found = [] if ids[0] == ids[1] else _differences(engine, names)
    finally:
        _remove(engine, names)
    _report(ids, [result.seconds for result in results], found, as_json)
    return ExitCode.OK if ids[0] == ids[1] else ExitCode.FINDINGS


def _twice(job: Job, request: BuildRequest, names: Sequence[str]) -> list[BuildResult]:
    """Once from the project, once from a copy of what the build reads in another folder."""
    from dataclasses import replace

    results = []
    with files.Scratch("verify") as folder:
        copy = Path(folder)
        for path in job.rendered.context_files:
            if (job.root / path).is_file():
                (copy / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(job.root / path, copy / path)
        for name, context in zip(names, (job.root, copy), strict=True):
            progress(f"building {name} from {context}")
            results.append(_build(replace(request, tags=(name,), context=context)))
            progress(f"{name}: {results[-1].image_id} in {results[-1].seconds:.1f} s")
    return results


def _build(request: BuildRequest) -> BuildResult:
    from envgen.engine import buildx
    from envgen.errors import BuildError

    result = buildx.build(request, lambda _event, _total: None)
    if not result.ok:
        step = result.failed.title if result.failed else "buildx"
        lines = "\n    ".join(result.last_lines[-15:])
        raise BuildError(f"the build failed in {step}:\n    {lines}", hint="`envgen build` says more")
    return result


def _differences(engine: Engine, names: Sequence[str]) -> list[Difference]:
    from envgen.lock.imagediff import compare

    progress("the image IDs differ: comparing the layers")
    with files.Scratch("verify") as folder:
        paths = [Path(folder, f"{number}.tar") for number in (1, 2)]
        for name, path in zip(names, paths, strict=True):
            engine.save_image(name, path)
        return compare(*paths)


def _remove(engine: Engine, names: Sequence[str]) -> None:
    for name in names:
        engine.remove_image(name)


def _report(ids: Sequence[str], seconds: Sequence[float], found: Sequence[Difference], as_json: bool) -> None:
    same = ids[0] == ids[1]
    if as_json:
        rows = [
            {"layer": d.layer, "step": d.step, "path": d.path, "field": d.field, "first": d.first, "second": d.second}
            for d in found
        ]
        times = [round(each, 1) for each in seconds]
        print_json({"identical": same, "image_ids": list(ids), "seconds": times, "differences": rows})
        return
    if same:
        click.echo(f"identical: {ids[0]}")
        return
    click.echo(f"different: {ids[0]} and {ids[1]}")
    for difference in found[:SHOWN]:
        click.echo(f"  {difference}")
    if len(found) > SHOWN:
        progress(f"{len(found) - SHOWN} more; --json lists all")
    if any(d.path.rpartition("/")[2].startswith(".wh.") for d in found):
        progress("hint: a step removed files of a lower layer; the time of that cannot be set (docs/reproducible.md)")
