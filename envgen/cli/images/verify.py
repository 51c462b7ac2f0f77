"""`envgen verify`: build twice without cache, and compare what came out."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from envgen import files
from envgen.app.build_lock import choose, demand
from envgen.app.build_plan import Job, job_of, jobs_of, request_of
from envgen.app.session import Session
from envgen.cli.common import json_option, print_json, project_options
from envgen.engine import buildx
from envgen.engine.base import Engine
from envgen.engine.buildx import BuildRequest, BuildResult
from envgen.engine.docker import connect
from envgen.errors import BuildError, ExitCode, UsageError
from envgen.lock.imagediff import Difference, compare, same_content
from envgen.render.workspace import prepare
from envgen.text import progress

SHOWN = 40


@click.command()
@project_options
@click.option("--max-jobs", type=click.IntRange(1, 9999), metavar="N", help="Compilers at once.")
@json_option
def command(session: Session, max_jobs: int | None, as_json: bool) -> int:
    """Build the image of a profile twice without cache, from two folders, and compare the images.

    Content is compared: files, modes, owners, links, bytes and configuration; times don't count. Where it differs, each
    difference is named (exit code 1). A profile with `reproducible: true` must also give the same image ID. Images of
    this command are removed again; the profile's own image stays as it is.

    \b
    Example:
      envgen verify -p prod
    """
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
        found, content = ([], True) if ids[0] == ids[1] else _differences(engine, names, bytewise=profile.reproducible)
    finally:
        _remove(engine, names)
    _report(ids, content, [result.seconds for result in results], found, as_json)
    return ExitCode.FINDINGS if found else ExitCode.OK


def _twice(job: Job, request: BuildRequest, names: Sequence[str]) -> list[BuildResult]:
    """Once from the project, once from a copy of what the build reads in another folder."""
    results = []
    with files.Scratch("verify") as folder:
        copy = Path(folder, "context")
        shutil.copytree(job.folder, copy)
        for name, context in zip(names, (job.folder, copy), strict=True):
            progress(f"building {name} from {context}")
            results.append(
                _build(replace(request, tags=(name,), context=context, dockerfile=context / job.rendered.dockerfile))
            )
            progress(f"{name}: {results[-1].image_id} in {results[-1].seconds:.1f} s")
    return results


def _build(request: BuildRequest) -> BuildResult:
    result = buildx.build(request)
    if not result.ok:
        step = result.failed.title if result.failed else "buildx"
        lines = "\n    ".join(result.last_lines[-15:])
        raise BuildError(f"the build failed in {step}:\n    {lines}", hint="`envgen build` says more")
    return result


def _differences(engine: Engine, names: Sequence[str], *, bytewise: bool) -> tuple[list[Difference], bool]:
    """What differs, and whether the content is the same. ``bytewise``: times are differences, too."""
    progress("the image IDs differ: comparing the content")
    with files.Scratch("verify") as folder:
        paths = [Path(folder, f"{number}.tar") for number in (1, 2)]
        for name, path in zip(names, paths, strict=True):
            engine.save_image(name, path)
        found = same_content(*paths)
        return (found or compare(*paths) if bytewise else found), not found


def _remove(engine: Engine, names: Sequence[str]) -> None:
    for name in names:
        engine.remove_image(name)


def _report(
    ids: Sequence[str], content: bool, seconds: Sequence[float], found: Sequence[Difference], as_json: bool
) -> None:
    same = ids[0] == ids[1]
    if as_json:
        rows = [
            {"layer": d.layer, "step": d.step, "path": d.path, "field": d.field, "first": d.first, "second": d.second}
            for d in found
        ]
        times = [round(each, 1) for each in seconds]
        document = {"same_content": content, "same_id": same, "image_ids": list(ids), "seconds": times}
        print_json({**document, "differences": rows})
        return
    click.echo("same content" if content else "different content")
    click.echo(f"same ID: {ids[0]}" if same else f"different IDs: {ids[0]} and {ids[1]}")
    for difference in found[:SHOWN]:
        click.echo(f"  {difference}")
    if len(found) > SHOWN:
        progress(f"{len(found) - SHOWN} more; --json lists all")
    if any(d.path.rpartition("/")[2].startswith(".wh.") for d in found):
        progress("hint: a step removed files of a lower layer; the time of that cannot be set (docs/reproducible.md)")
