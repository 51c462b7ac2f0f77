"""`envgen build`: build the image of a profile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import click

from envgen.app import build as builds
from envgen.app import provision
from envgen.app.build import BuildOutcome
from envgen.app.images import remember
from envgen.app.provision import MissingInputs
from envgen.app.session import Session
from envgen.app.status import drift
from envgen.binding import JsonDict
from envgen.cli.common import flag, print_json, reporting, wants_json, warn_of_unused
from envgen.engine.buildx import BuildResult
from envgen.errors import BuildError, ExitCode
from envgen.serve.ended import with_profile_named
from envgen.text import progress, short_id, shorten

SHOWN_LINES = 25  # of a step that failed


@click.command()
@reporting
@flag("--no-cache", "Run every step again, without BuildKit's cache.")
@flag("--unlocked", "Ignore envgen.lock; use the versions that are current now.")
def command(session: Session, no_cache: bool, unlocked: bool) -> int:
    """Render a profile, then build its image with BuildKit.

    Does nothing if the image is up to date. The full output of each build is kept in .envgen/logs.
    A production profile needs all of its inputs in envgen.lock.

    \b
    Examples:
      envgen build --profile dev
      envgen build --set cuda.arch_list=12.1a
    """
    deployment = session.deployment()
    warn_of_unused(session)
    watched = not wants_json()
    outcome = builds.build(deployment, show=watched, no_cache=no_cache, unlocked=unlocked)
    show(outcome)
    remember(session, outcome.deployment)
    files = drift(session, outcome.deployment)
    if files:
        render = deployment.profile.render_command
        progress(f"out of date: {', '.join(files)}; update with: {render}")
    return ExitCode.OK


def provide(session: Session, lacking: MissingInputs, ask: Callable[[], None]) -> None:
    """Make what services lack, as the first step of another command: prints to stderr."""
    provision.Provision(session, lacking, lambda outcome: show(outcome, to_stderr=True), ask).run()


def show(outcome: BuildOutcome, *, to_stderr: bool = False) -> None:
    """Print how the build ended. BuildError if it failed."""
    profile = outcome.deployment.profile
    result = outcome.result
    as_json = wants_json() and not to_stderr
    if result and not result.ok:
        raise _failure(outcome, result, quiet=as_json)
    if as_json:
        print_json(_document(outcome))
    elif result is None:
        click.echo(
            f"{profile.image_name} is up to date ({short_id(outcome.image_id)})", err=to_stderr
        )
    else:
        click.echo(
            f"built {profile.image_name} ({short_id(outcome.image_id)}) in {result.seconds:.1f} s",
            err=to_stderr,
        )


def _failure(outcome: BuildOutcome, result: BuildResult, quiet: bool) -> BuildError:
    """Print the last lines of the failed step; the error has the step, the cause and the fix."""
    cause = outcome.cause
    for line in [] if quiet or outcome.shown else result.lines[-SHOWN_LINES:]:
        progress(f"    {shorten(line.strip(), 300)}")
    what = f"the build of {outcome.deployment.profile.image_name} failed"
    if result.step:
        code = f" (exit code {result.exit_code})" if result.exit_code is not None else ""
        what += f" in step {shorten(result.step, 120)!r}{code}"
    if cause:
        what += f"\n    {cause.said}:\n    > {shorten(cause.evidence.strip(), 300)}"
    elif result.exit_code is None and result.notes:
        what += f"\n    {shorten(result.notes.splitlines()[-1], 500)}"
    hints = [with_profile_named(cause.cure, outcome.deployment.profile, "SERVICE")] if cause else []
    error = BuildError(what, hint="; ".join([*hints, f"the whole output is in {outcome.log}"]))
    error.details = _document(outcome)
    return error


def _document(outcome: BuildOutcome) -> JsonDict:
    deployment = outcome.deployment
    result = outcome.result
    head = {
        "profile": deployment.profile.name,
        "image": deployment.profile.image_name,
        "digest": deployment.rendered.digest,
    }
    if result is None:
        return {**head, "ok": True, "up_to_date": True, "image_id": outcome.image_id}
    failure = {
        "step": result.step or None,
        "exit_code": result.exit_code,
        "lines": result.lines[-SHOWN_LINES:],
        "error": result.notes or None,
        "cause": outcome.cause and vars(outcome.cause),
    }
    return {
        **head,
        "ok": result.ok,
        "up_to_date": False,
        "image_id": outcome.image_id,
        "changed": list(map(asdict, outcome.changed)),
        "seconds": round(result.seconds, 3),
        "log": outcome.log,
        "failure": None if result.ok else failure,
    }
