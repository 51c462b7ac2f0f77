"""Options and lines that several commands for services share."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import click

from envgen.cli.common import Count, F, answer
from envgen.engine.values import Container
from envgen.errors import ExitCode, UsageError
from envgen.profile.exposure import is_local, open_ports
from envgen.profile.model import Profile
from envgen.profile.service import Service
from envgen.serve.launch import Started
from envgen.serve.notices import in_words
from envgen.text import progress

timeout_option = click.option(
    "--timeout", type=Count(1), metavar="SECONDS", help="Stop waiting after this long (default: ready.timeout)."
)
node_option = click.option("--node", metavar="NAME", help="The machine, for a service with `cluster`.")


def inside_options(function: F) -> F:
    """Add the options of `docker exec`; the command receives them as ``inside``, and ``tty`` (False with -T)."""

    @click.option("-e", "--env", "variables", multiple=True, metavar="NAME[=VALUE]", help="Set a variable.")
    @click.option("-u", "--user", metavar="USER", help="Run as this user (name or number).")
    @click.option("-w", "--workdir", metavar="FOLDER", help="Run in this folder.")
    @click.option("-t", "--tty", "wanted", is_flag=True, help="Allocate a terminal (default if this is one).")
    @click.option("-T", "--no-tty", is_flag=True, help="Do not allocate a terminal.")
    @functools.wraps(function)
    def wrapper(
        *args: Any, variables: tuple[str, ...], user: str | None, workdir: str | None, wanted: bool, no_tty: bool,
        **kwargs: Any,
    ) -> Any:  # fmt: skip
        given = [*(("env", one) for one in variables), ("user", user), ("workdir", workdir)]
        words = [f"--{name}={value}" for name, value in given if value is not None]
        return function(*args, inside=words, tty=not no_tty, **kwargs)

    return wrapper  # type: ignore[return-value]


def command_of(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The command after SERVICE and an optional `--`. UsageError for a misplaced option."""
    words = argv[1:] if argv[:1] == ("--",) else argv
    if not words:
        raise UsageError("no command given", hint="write it after SERVICE")
    if words is argv and words[0].startswith("-"):
        raise UsageError(f"{words[0]} is not a command", hint="envgen's options come before SERVICE")
    return words


def reachable(service: Service, container: Container) -> list[int]:
    """The ports of the machine that a container has open to the network; Docker lists none of the host's network."""
    if service.network is not None:
        return list(open_ports(service))
    return sorted({port.host for port in container.ports if not is_local(port.address)})


def started_document(profile: Profile, service: str, started: Started, *, waited: bool) -> dict[str, Any]:
    """The result of a start as JSON."""
    container, awaited = started.container, started.awaited
    return {
        "already_running": started.already,
        "chats": {name: {"good": good, "seen": seen} for name, (good, seen) in awaited.answer.chats.items()},
        "completion": awaited.answer.text,
        "container": container.name,
        "health": container.health,
        "asked": waited and not awaited.answer.unasked,
        "first_token_seconds": round(awaited.answer.first_token, 3),
        "id": container.id,
        "image": container.image_id,
        "log_shows": awaited.shown,
        "notices": [one.data() for one in started.notices],
        "open_ports": reachable(profile.services[service], container),
        "phases": awaited.phases,
        "restarts": awaited.restarts,
        "seconds": round(started.seconds, 1),
        "service": service,
        "state": container.state,
        "url": started.url,
        "variant": container.labels.get("dev.envgen.variant", ""),
        "waited": waited,
    }


def print_started(profile: Profile, service: str, started: Started, *, waited: bool = True) -> None:
    """Print the result of a start."""
    container = started.container
    if not waited:
        click.echo(f"{service} was started as {container.name}; not waited for")
        return
    awaited = started.awaited
    how, unasked = "is ready", ""
    if awaited.answer.unasked:
        how = "is running"
        described = profile.services[service]
        unasked = f"; nothing was asked: {awaited.answer.unasked}" if described.serves or described.http_port else ""
    if started.already:
        how = "was running already" + (" and is ready" if how == "is ready" else "")
    click.echo(
        f"{service} {how} after {started.seconds:.1f} s as {container.name}"
        + (f", {started.url}" if started.url else "")
        + (" (reachable from the network)" if reachable(profile.services[service], container) else "")
        + unasked
    )
    if awaited.answer.pooled:
        click.echo(f"  {awaited.answer.pooled}")
    if awaited.answer.text:
        click.echo(f"  completed {awaited.prompt!r} with {awaited.answer.text!r}")
    for name, (good, seen) in awaited.answer.chats.items():
        click.echo(f"  {name}: {seen}" if good else f"  {name}: not tried: {seen}")
    for name, line in awaited.shown.items():
        click.echo(f"  {name}: {line.strip()[:160]}")
    for line in in_words(started.notices):
        click.echo(f"  {line}")
    if awaited.restarts:
        click.echo(f"  Docker restarted it {awaited.restarts} times: envgen logs {service} {profile.chosen}")
    if profile.services[service].cluster:
        click.echo("  if a rank ends, the service stays down; `up --stay` in a systemd unit starts it again")


def ended(document: Any, lines: Sequence[str], left: Sequence[str]) -> int:
    """Print the document or the lines, and ``left``: what machines that do not answer still need."""
    answer(document, lines)
    for line in left:
        progress(line, always=True)
    return ExitCode.ENGINE if left else ExitCode.OK


def described(profile: Profile, names: Sequence[str]) -> str:
    return f"{', '.join(names)} of profile {profile.name}" if names else f"profile {profile.name}"
