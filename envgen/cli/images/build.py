"""`envgen build`: render, then build the image of a profile."""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import closing
from dataclasses import asdict
from typing import Any

import click

from envgen.app.build import (
    Job,
    Options,
    Outcome,
    build,
    compilers,
    job_of,
    request_of,
    shell_before,
    shown_path,
    up_to_date,
)
from envgen.app.session import Session
from envgen.cli.common import json_option, print_json, project_options
from envgen.cli.images.display import Display
from envgen.engine.buildx import OWN, BuildResult, argv_of
from envgen.engine.client import Engine, connect
from envgen.errors import BuildError, EngineError, ExitCode, UsageError
from envgen.profile.model import Platform
from envgen.render.locking import lock_of
from envgen.text import counted, progress, short_id, shorten

SHOWN_LINES = 25


@click.command()
@project_options
@click.option("--no-cache", is_flag=True, help="Run every step again.")
@click.option("--pull", is_flag=True, help="Look for a newer base image in its registry.")
@click.option("--tag", "tags", multiple=True, metavar="REF", help="A further name of the image (repeatable).")
@click.option("--push", is_flag=True, help="Push to the registries of --tag, instead of loading into the engine.")
@click.option("--cache-from", multiple=True, metavar="SPEC", help="Where to take steps from, as buildx spells it.")
@click.option("--cache-to", multiple=True, metavar="SPEC", help="Where to keep steps, as buildx spells it.")
@click.option(
    "--platform", type=click.Choice([one.value for one in Platform]), help="Short for --set base.platform=..."
)
@click.option("--max-jobs", type=click.IntRange(1, 9999), metavar="N", help="Compilers at once, for this build.")
@click.option("--unlocked", is_flag=True, help="Go by names and tags, whatever envgen.lock says or lacks.")
@click.option("--take-over", is_flag=True, help="Stop and replace what another folder or user has under this name.")
@click.option("--target", default="", metavar="STAGE", help="Stop after this stage; the image is IMAGE-STAGE.")
@click.option("--shell-on-error", is_flag=True, help="Open a shell in what was there before the step that failed.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")
@json_option
def command(
    session: Session,
    no_cache: bool,
    pull: bool,
    tags: tuple[str, ...],
    push: bool,
    cache_from: tuple[str, ...],
    cache_to: tuple[str, ...],
    platform: str | None,
    max_jobs: int | None,
    unlocked: bool,
    take_over: bool,
    target: str,
    shell_on_error: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Render a profile, then build its image with BuildKit.

    If nothing has changed since the last build, BuildKit isn't even asked. The whole output of every build is kept
    below .envgen/logs. A changed number of jobs rebuilds nothing. A production profile wants an envgen.lock that holds
    all of its inputs.

    --shell-on-error: BuildKit keeps nothing of a step that failed, so the shell is in the state before it, without the
    step's own mounts; the command that failed is printed. The exit code stays 4.

    BUILDX_BUILDER names another builder than the engine's own, which then pulls the base image from its registry.

    \b
    Example:
      envgen build --profile dev
      envgen build --shell-on-error
      envgen build --target base
      envgen build -p prod --max-jobs 4
      envgen build --set cuda.arch_list=12.1f --dry-run
      envgen build -p prod --push --tag registry.example/vllm:1 --cache-to type=registry,ref=registry.example/cache
    """
    if platform:
        session.sets += (f"base.platform={platform}",)
    profile, root = session.profile(), session.loaded().project.root
    if push and not tags:
        raise UsageError("--push needs a name that leads to a registry", hint="--tag registry.example/name:tag")
    if shell_on_error and (as_json or not (sys.stdin.isatty() and sys.stdout.isatty())):
        raise UsageError("--shell-on-error needs a terminal", hint="run it in a terminal, without --json")
    builder = _builder()
    if shell_on_error and builder != OWN:
        raise UsageError(
            f"--shell-on-error needs the engine's own builder, not {builder!r}", hint="unset BUILDX_BUILDER"
        )
    options = Options(max_jobs, no_cache, pull, tags, push, cache_from, cache_to, builder)
    job = job_of(profile, root, None if unlocked else lock_of(profile, root), target)
    for warning in session.loaded().warnings:
        progress(f"warning: {warning}")
    if dry_run:
        return _dry_run(job, options, as_json)
    with closing(Display(job.steps, live=not as_json)) as display:
        outcome = build(
            session, job, on_step=display.step, on_tick=display.tick,
            options=options, unlocked=unlocked, take_over=take_over,
        )  # fmt: skip
    try:
        _show(outcome, as_json)
    except BuildError:
        if shell_on_error and outcome.result and outcome.result.failed:
            shell_before(job, outcome.result.failed, max_jobs)
        raise
    return ExitCode.OK


def _builder() -> str:
    return os.environ.get("BUILDX_BUILDER") or OWN


def make(session: Session, *, take_over: bool = False) -> None:
    """Build the image of the session's profile if it is not up to date; what it prints goes to stderr."""
    profile, root = session.profile(), session.loaded().project.root
    job = job_of(profile, root, lock_of(profile, root))
    with closing(Display(job.steps, live=True)) as display:
        options = Options(builder=_builder())
        outcome = build(session, job, on_step=display.step, on_tick=display.tick, options=options, take_over=take_over)
    _show(outcome, as_json=False, to_stderr=True)


def _show(outcome: Outcome, as_json: bool, to_stderr: bool = False) -> None:
    """How the build ended. BuildError when it failed."""
    job, result = outcome.job, outcome.result
    if result is None:
        if as_json:
            print_json({**_head(job), "ok": True, "up_to_date": True, "image_id": outcome.image_id})
        else:
            click.echo(f"{job.image} is up to date ({short_id(outcome.image_id)})", err=to_stderr)
        return
    for warning in result.warnings:
        progress(f"warning: {warning}")
    if not result.ok:
        raise _failure(outcome, result, quiet=as_json)
    if as_json:
        print_json(_document(outcome, result))
    else:
        built = f"built {job.image} ({short_id(result.image_id)})"
        if outcome.pushed:  # who pulls it needs the whole digest
            built = f"pushed {', '.join(outcome.pushed)} ({result.image_id})"
        click.echo(
            f"{built} in {result.seconds:.1f} s: {counted(len(result.steps), 'step')}, {result.cached} from the cache",
            err=to_stderr,
        )
        if not outcome.pushed and any(service.cluster for service in job.profile.services.values()):
            progress(f"the other machines: envgen nodes push --image --profile {job.profile.name}")


def _failure(outcome: Outcome, result: BuildResult, quiet: bool) -> BuildError:
    """Show what the failing step wrote last; the error itself says which step, why, and what to do."""
    cause = outcome.cause
    if not quiet:
        for line in result.last_lines[-SHOWN_LINES:]:
            progress(f"    {shorten(line.strip(), 300)}", always=True)
    step = result.failed
    what = f"the build of {outcome.job.image} failed"
    if step:
        code = f" (exit code {step.exit_code})" if step.exit_code is not None else ""
        name = outcome.job.steps.get(step.instruction) or step.title
        what += f" in step {shorten(name, 120)!r}{code}"
    if cause:
        what += f"\n    {cause.summary}:\n    > {shorten(cause.evidence.strip(), 300)}"
    elif step and step.exit_code is None:
        what += f"\n    {shorten(step.error, 500)}"
    hints = [cause.cure] if cause else []
    error = BuildError(what, hint="; ".join([*hints, f"the whole output is in {outcome.log}"]))
    error.details = _document(outcome, result)
    return error


def _document(outcome: Outcome, result: BuildResult) -> dict[str, Any]:
    failure = None
    if not result.ok:
        failure = {
            "step": result.failed.title if result.failed else None,
            "exit_code": result.failed.exit_code if result.failed else None,
            "lines": result.last_lines[-SHOWN_LINES:],
            "error": result.error or None,
            "cause": asdict(outcome.cause) if outcome.cause else None,
        }
    return {
        **_head(outcome.job),
        "ok": result.ok,
        "up_to_date": False,
        "image_id": result.image_id,
        "pushed": list(outcome.pushed),
        "seconds": round(result.seconds, 3),
        "steps": [
            {"number": n, "name": s.title, "seconds": s.seconds, "cached": s.cached, "error": s.error}
            for n, s in enumerate(result.steps, 1)
        ],
        "compilers": outcome.compilers or None,
        "log": outcome.log,
        "failure": failure,
    }


def _head(job: Job) -> dict[str, Any]:
    return {"profile": job.profile.name, "image": job.image, "digest": job.rendered.digest}


def _dry_run(job: Job, options: Options, as_json: bool) -> int:
    """The exact plan. Works without an engine too; then it can't say whether the image is up to date."""
    engine: Engine | None
    try:
        engine, trouble = connect(), ""
    except EngineError as error:
        engine, trouble = None, str(error)
    how = compilers(job.profile, engine, options.max_jobs)
    argv = argv_of(request_of(job, options))
    current = bool(engine and options.plain and up_to_date(job, engine))
    if as_json:
        plan = {**_head(job), "dry_run": True, "up_to_date": current, "argv": argv}
        print_json({**plan, "compilers": how, "engine": trouble or "ok"})
        return ExitCode.OK
    if trouble:
        progress(f"no engine: {trouble}")
    click.echo(f"image    {job.image}{' (up to date: nothing would be built)' if current else ''}")
    click.echo(f"digest   {job.rendered.digest}")
    click.echo(f"files    {', '.join(sorted(job.rendered.files))} into {shown_path(job, job.folder)}")
    click.echo(how)
    click.echo(f"command  {shlex.join(argv)}")
    return ExitCode.OK
