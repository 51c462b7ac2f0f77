"""`envgen up`: start a service and wait until it really answers."""

from __future__ import annotations

from typing import Any

import click

from envgen.app import nodes, services
from envgen.app.session import Session
from envgen.app.watch import Canary
from envgen.cli.common import LARGEST, Figure, ask, json_option, print_json, project_options, show_logs, variant_option
from envgen.cli.images.build import make
from envgen.cli.services.options import timeout_option
from envgen.errors import EnvgenError, UsageError
from envgen.profile.exposure import open_ports
from envgen.profile.model import Profile
from envgen.serve.launch import Started
from envgen.serve.preflight import with_ports
from envgen.text import progress


@click.command()
@click.argument("names", metavar="[SERVICE]...", nargs=-1)
@project_options
@variant_option
@click.option("--build", "build_first", is_flag=True, help="Build the image first if it is not up to date.")
@click.option("--no-wait", is_flag=True, help="Return as soon as the container is created.")
@timeout_option
@click.option("--follow/--detach", " /-d", default=False, help="When it is ready, show its output until Ctrl-C.")
@click.option("--no-install", is_flag=True, help="Don't install the mounted sources (development profiles).")
@click.option("--no-predict", is_flag=True, help="Don't ask the release first what it would choose.")
@click.option("--recreate", is_flag=True, help="Replace a running container whose settings differ, without asking.")
@click.option("--take-over", is_flag=True, help="Stop and replace what another folder or user runs under this name.")
@click.option("--stay", is_flag=True, help="Then watch a service with `cluster`; if a part of it fails, take all down.")
@click.option(
    "--canary",
    type=Figure(0, LARGEST),
    default=30,
    show_default=True,
    metavar="SECONDS",
    help="With --stay: send a small request this often; 0: none.",
)
@click.option(
    "--canary-timeout",
    type=Figure(1, LARGEST),
    default=60,
    show_default=True,
    metavar="SECONDS",
    help="How long its answer may take; after two in a row that fail all is taken down.",
)
@json_option
def command(
    session: Session,
    names: tuple[str, ...],
    variant: str,
    build_first: bool,
    no_wait: bool,
    timeout: int | None,
    follow: bool,
    no_install: bool,
    no_predict: bool,
    recreate: bool,
    take_over: bool,
    stay: bool,
    canary: float,
    canary_timeout: float,
    as_json: bool,
) -> int:
    """Start each SERVICE (default: all of the profile) in turn, and wait until it answers.

    First everything is checked: the image is current, mounted checkouts are there, ports are free, and the memory, GPU
    and weights that are wanted are available. vLLM in the image is asked which kernels it would choose (`envgen
    predict`). If anything is wrong, nothing is started (exit code 6); if only weights are missing, up asks whether to
    fetch them.

    Ready means: the model is listed, a prompt is completed, and the log shows what `ready` expects. A service that
    fails is removed, after its logs and state are saved in a crash bundle (exit code 5). Ctrl-C stops the waiting, not
    the service.

    A running service is left alone. If its settings differ from the profile's, up shows the differences and replaces it
    only with --recreate or after a yes (otherwise exit code 6). If another folder or user runs it, --take-over stops
    theirs.

    A service with `cluster` starts on all its machines, after `envgen nodes check`: workers first, then the head. If
    one ends, up names it, saves a crash bundle and takes all down. --stay keeps watching once the service is ready.

    \b
    Example:
      envgen up serve
      envgen up --build dev serve
      envgen up serve --variant cutlass
      envgen up dev --profile dev
      envgen up serve --stay
      envgen up serve --set services.serve.args.max-model-len=8192
    """
    session.variant = variant
    if stay and (len(names) != 1 or no_wait or follow):
        raise UsageError("--stay is for one service, without --no-wait and --follow")
    if stay:
        nodes.choose(session.profile(), names[0])
    if build_first:
        make(session, take_over=take_over)
    checked = services.check_all(session, names, ask, take_over=take_over)
    documents: list[dict[str, Any]] = []
    try:
        for one, started in services.start_all(
            checked, ask, wait=not no_wait, install=not no_install, predict=not no_predict, recreate=recreate,
            timeout=timeout,
        ):  # fmt: skip
            if as_json:
                documents.append(document(one.here.profile, one.service, started, waited=not no_wait))
            else:
                report(one.here.profile, one.service, started, waited=not no_wait)
    except EnvgenError as error:
        error.details = {"started": documents}
        raise
    if as_json:
        print_json(documents[0] if len(names) == 1 else documents)
    if stay:
        services.stay(session, checked[0], Canary(canary, canary_timeout), timeout)
    elif unwatched := [one.service for one in checked if one.restarts]:
        progress(f"note: on_failure of {', '.join(unwatched)} needs --stay: else nothing watches it from here on")
    if not follow:
        return 0
    composes = {here.node: here.compose for one in checked for here in one.places}
    return show_logs(composes, "--profile", "*", "logs", "--follow", *(one.service for one in checked))


def document(profile: Profile, service: str, started: Started, *, waited: bool) -> dict[str, Any]:
    """How a start ended, for machines."""
    container = started.container
    return {
        "already_running": started.already,
        "completion": started.awaited.answer.text,
        "container": container.name,
        "health": container.health,
        "first_token_seconds": round(started.awaited.answer.first_token, 3),
        "id": container.id,
        "image": container.image_id,
        "log_shows": started.awaited.shown,
        "open_ports": list(open_ports(with_ports(profile, [container]).services[service])),
        "phases": started.awaited.phases,
        "restarts": started.awaited.restarts,
        "seconds": round(started.seconds, 1),
        "service": service,
        "state": container.state,
        "url": started.url,
        "variant": container.labels.get("dev.envgen.variant", ""),
        "waited": waited,
    }


def report(profile: Profile, service: str, started: Started, *, waited: bool = True) -> None:
    """How a start ended, for people."""
    container = started.container
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
        click.echo(
            f"  Docker restarted it {awaited.restarts} times on the way: envgen logs {service} --profile {profile.name}"
        )
