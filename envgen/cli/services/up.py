"""`envgen up`: start a service and wait until it really answers."""

from __future__ import annotations

import difflib
import os
import shlex
import sys
from functools import partial
from pathlib import Path

import click

from envgen.app import weights
from envgen.app.crash import keeper
from envgen.app.predict import foresee
from envgen.app.session import Session
from envgen.cli.common import LARGEST, json_option, print_json, project_options, show_log, variant_option
from envgen.engine.base import Container, Engine
from envgen.engine.compose import Compose
from envgen.engine.docker import connect
from envgen.errors import UsageError
from envgen.profile.exposure import open_ports
from envgen.profile.model import Profile
from envgen.render.locked import lock_of_image
from envgen.render.workspace import prepare
from envgen.serve import preflight
from envgen.serve.launch import Launcher, Started, compose_for
from envgen.serve.preflight import PreflightError
from envgen.serve.recreate import RecreateRefused, differences, keep_moment, missing_here
from envgen.text import progress


@click.command()
@click.argument("service")
@project_options
@variant_option
@click.option("--no-wait", is_flag=True, help="Return as soon as the container is created.")
@click.option("--timeout", type=click.IntRange(1, LARGEST), metavar="SECONDS", help="Give up waiting after this long.")
@click.option("--follow/--detach", " /-d", default=False, help="When it is ready, show its output until Ctrl-C.")
@click.option("--no-install", is_flag=True, help="Don't install the mounted sources (development profiles).")
@click.option("--no-predict", is_flag=True, help="Don't ask the release first what it would choose.")
@click.option("--recreate", is_flag=True, help="Replace a running container whose settings differ, without asking.")
@click.option("--dry-run", is_flag=True, help="Check everything and show what would be run.")
@json_option
def command(
    session: Session,
    service: str,
    variant: str,
    no_wait: bool,
    timeout: int | None,
    follow: bool,
    no_install: bool,
    no_predict: bool,
    recreate: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Start SERVICE and wait until it really answers.

    First all is checked: the image is built and not older than the profile, mounted checkouts are there, ports are
    free, memory and a GPU can be had where they are wanted, and so are the weights that `model` names. If anything is
    wrong, nothing is started (exit code 6); where the weights alone are missing, a terminal is asked whether to fetch
    them.
    Ready means: the model is listed, a prompt is completed, and the log shows what `ready` expects. A service that
    fails is removed again, after all that it left behind was put into a crash bundle (exit code 5). Ctrl-C stops the
    waiting, not the service.

    Where the service is vLLM's server for a GPU, the release in the image is asked first which kernels it would choose
    (`envgen predict`): what it refuses, it refuses now, and nothing is started (exit code 6).

    A service that runs is left alone. If its settings differ from the profile's, each difference is named, and it is
    replaced only with --recreate or after a yes; otherwise the exit code is 6.

    \b
    Example:
      envgen up serve
      envgen up serve --variant cutlass
      envgen up dev --profile dev
      envgen up serve --set services.serve.args.max-model-len=8192
    """
    session.variant = variant
    root, profile = session.loaded().project.root, session.profile()
    known_service(profile, service)
    engine = connect()
    image = engine.image(profile.image_name)
    workspace = prepare(profile, root, lock_of_image(profile, root, image.labels if image else None))
    commit = weights.locked_commit(profile, root, service)
    look = partial(
        preflight.check, engine, profile, root, service, workspace.rendered.digest,
        lambda: weights.preflight(engine, profile, root, service, commit),
    )  # fmt: skip
    try:
        found = look()
    except preflight.PreflightError as refused:
        if dry_run or not (refused.only_weights and _fetched(engine, profile, root, service, refused)):
            raise
        found = look()
    compose = compose_for(profile, root, workspace.folder, engine, found.gpu, service)
    differing: tuple[str, ...] = ()
    if found.running:
        compose, differing = _compare(engine, compose, profile, service, found.running)
    if dry_run:
        for difference in differing:
            progress(f"{service} runs, and would be replaced: {difference}")
        argv = compose.argv("up", "--detach", "--no-build", "--pull", "never", service)
        _show_plan(argv, dict(compose.env), as_json)
        return 0
    named = f"{profile.name}, variant {variant}" if variant else profile.name
    progress(f"up {service}: profile {named}, image {profile.image_name}, gpu {found.gpu.value}")
    for note in found.notes:
        progress(f"  note: {note}")
    if not (no_predict or found.running):
        for note in foresee(engine, profile, root, service):
            progress(f"  note: {note}")
    if found.running and differing and not recreate:
        _may_replace(service, found.running, differing)
    keep = keeper(engine, profile, root, service, compose.files)
    launcher = Launcher(engine, compose, profile, service, progress, keep)
    try:
        started = launcher.start(wait=not no_wait, install=not no_install, timeout=timeout)
    except KeyboardInterrupt:
        if launcher.created:
            more = f"`envgen ps`, `envgen logs -f {service}`, `envgen down`"
            progress(f"\nno longer waiting; {service} goes on starting: {more}")
        raise
    _report(profile, service, started, waited=not no_wait, as_json=as_json)
    return show_log(compose, "--profile", "*", "logs", "--follow", service) if follow else 0


def _fetched(engine: Engine, profile: Profile, root: Path, service: str, refused: PreflightError) -> bool:
    """On a terminal: offer to fetch the weights that are missing, and do so after a yes."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    for problem in refused.problems[1:]:
        progress(f"  {problem.message}")
    if not click.confirm("Fetch them now?", default=False, err=True):
        return False
    weights.fetch(engine, profile, root, service)
    return True


def _compare(
    engine: Engine, compose: Compose, profile: Profile, service: str, running: Container
) -> tuple[Compose, tuple[str, ...]]:
    """The Compose project with what the running container keeps, and what differs anyway."""
    for name in missing_here(profile, running, os.environ):
        progress(f"  note: {name} is not set in this terminal; {service} keeps the value it was started with")
    compose = keep_moment(compose, profile, running, os.environ)
    return compose, differences(engine, compose, profile, service, running)


def _may_replace(service: str, running: Container, differing: tuple[str, ...]) -> None:
    """Return if ``running`` may be replaced: it is unhealthy, or the user says yes. RecreateRefused otherwise."""
    for difference in differing:
        progress(f"  {service}: {difference}")
    if running.health == "unhealthy":
        progress(f"  {service} is unhealthy and is replaced")
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise RecreateRefused(service, differing)
    if not click.confirm(f"{service} is running. Replace it?", err=True):
        raise RecreateRefused(service, differing)


def known_service(profile: Profile, name: str) -> None:
    """UsageError with a near match unless the profile has a service of that name."""
    if name not in profile.services:
        near = difflib.get_close_matches(name, profile.services, 1)
        raise UsageError(
            f"profile {profile.name} has no service {name!r}; it has: {', '.join(profile.services) or 'none'}",
            hint=f"did you mean `{near[0]}`?" if near else "another profile? add --profile NAME",
        )


def _show_plan(argv: list[str], env: dict[str, str], as_json: bool) -> None:
    if as_json:
        print_json({"argv": argv, "environment": env})
        return
    for name, value in sorted(env.items()):
        click.echo(f"{name}={value}")
    click.echo(shlex.join(argv))


def _report(profile: Profile, service: str, started: Started, *, waited: bool, as_json: bool) -> None:
    container = started.container
    if as_json:
        print_json(
            {
                "already_running": started.already,
                "completion": started.awaited.answer.text,
                "container": container.name,
                "health": container.health,
                "first_token_seconds": round(started.awaited.answer.first_token, 3),
                "id": container.id,
                "image": container.image_id,
                "log_shows": started.awaited.shown,
                "open_ports": list(open_ports(profile.services[service])),
                "phases": started.awaited.phases,
                "restarts": started.awaited.restarts,
                "seconds": round(started.seconds, 1),
                "service": service,
                "state": container.state,
                "url": started.url,
                "variant": container.labels.get("dev.envgen.variant", ""),
                "waited": waited,
            }
        )
        return
    if not waited:
        click.echo(f"{service} was started as {container.name}; not waited for")
        return
    how = "was running already and is ready" if started.already else "is ready"
    click.echo(
        f"{service} {how} after {started.seconds:.1f} s as {container.name}"
        + (f", {started.url}" if started.url else "")
        + (" (reachable from the network)" if open_ports(profile.services[service]) else "")
    )
    awaited = started.awaited
    if awaited.answer.text:
        click.echo(f"  {awaited.prompt!r} is completed with {awaited.answer.text!r}")
    if awaited.phases:
        click.echo("  " + ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in awaited.phases.items()))
    for name, line in awaited.shown.items():
        click.echo(f"  {name}: {line.strip()[:160]}")
    if awaited.restarts:
        click.echo(f"  Docker restarted it {awaited.restarts} times on the way: envgen logs {service}")
