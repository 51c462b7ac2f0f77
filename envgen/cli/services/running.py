"""`envgen down`, `stop`, `start`, `ps`, `logs`, `restart`, `exec`, `shell`: what is done with services that exist."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import click

from envgen.app import services, whose
from envgen.app.services import changed, opened, running
from envgen.app.session import Session
from envgen.cli.common import LARGEST, json_option, print_json, project_options, project_options_without_f, show_log
from envgen.cli.services.options import command_of, inside_options, timeout_option
from envgen.cli.services.up import document, report
from envgen.engine.base import Container, Engine
from envgen.engine.compose import Compose, attach
from envgen.engine.docker import connect
from envgen.engine.endpoint import find_endpoint
from envgen.engine.whose import ours
from envgen.errors import NotFoundError, UsageError
from envgen.profile.exposure import exposed, is_local
from envgen.profile.model import Profile
from envgen.render.environment import with_start_up
from envgen.serve.launch import Started
from envgen.text import progress, table


@click.command()
@click.argument("names", metavar="[SERVICE]...", nargs=-1)
@project_options
@click.option("-v", "--volumes", is_flag=True, help="Also remove named volumes: caches and installed sources.")
@click.option("--take-over", is_flag=True, help="Also what another folder or user has under this name.")
@click.option("--dry-run", is_flag=True, help="Show what would be removed.")
@json_option
def down(session: Session, names: tuple[str, ...], volumes: bool, take_over: bool, dry_run: bool, as_json: bool) -> int:
    """Stop and remove each SERVICE, or all services of the profile. Volumes stay unless --volumes is given.

    \b
    Example:
      envgen down
      envgen down web
      envgen down --profile prod --dry-run
    """
    if names and volumes:
        raise UsageError("the services of a profile share their volumes", hint="envgen down --volumes")
    here = opened(session)
    profile, engine, compose = here.profile, here.engine, here.compose
    if not take_over:
        whose.demand(engine, profile, here.root, f"envgen down --profile {profile.name} --take-over")
    whose.note_older(engine, profile, here.root)
    found = sorted(one.name for one in services.of_services(here, names, all=True, foreign=take_over))
    doomed = _volumes(engine, compose) if volumes else []
    if not dry_run:
        if take_over:
            whose.take_over(engine, profile, here.root, compose)
        for name in found:
            progress(f"  stopping and removing {name}")
        if not names:
            compose.run("--profile", "*", "down", "--remove-orphans", *(["--volumes"] if volumes else []))
        elif found:
            compose.run("--profile", "*", "rm", "--stop", "--force", *names)
        if volumes:
            whose.release(engine, profile)
    if as_json:
        print_json({"containers": found, "dry_run": dry_run, "volumes": doomed})
        return 0
    verb = "would be removed" if dry_run else "removed"
    for kind, removed in (("container", found), ("volume", doomed)):
        for name in removed:
            click.echo(f"{kind} {name} {verb}")
    if not found and not doomed:
        click.echo(f"no containers for {_whose(profile, names)}")
    return 0


def _whose(profile: Profile, names: Sequence[str]) -> str:
    return f"{', '.join(names)} of profile {profile.name}" if names else f"profile {profile.name}"


def _volumes(engine: Engine, compose: Compose) -> list[str]:
    """The named volumes of the rendered file that exist."""
    config = json.loads(compose.run("--profile", "*", "config", "--format", "json").stdout)
    volumes = (config.get("volumes") or {}).items()
    names = [str(volume.get("name", key)) for key, volume in volumes if not volume.get("external")]
    return sorted(name for name in names if engine.volume(name) is not None)


@click.command()
@click.argument("names", metavar="[SERVICE]...", nargs=-1)
@project_options
@json_option
def stop(session: Session, names: tuple[str, ...], as_json: bool) -> int:
    """Stop each SERVICE, or all services of the profile. Their containers stay: `envgen start` continues them.

    \b
    Example:
      envgen stop serve
    """
    profile, found = services.halt(session, names)
    if as_json:
        print_json({"containers": [container.name for container in found]})
        return 0
    for container in found:
        click.echo(f"container {container.name} stopped")
    if not found:
        click.echo(f"no running containers for {_whose(profile, names)}")
    return 0


@click.command()
@click.argument("names", metavar="SERVICE...", nargs=-1, required=True)
@project_options
@timeout_option
@json_option
def start(session: Session, names: tuple[str, ...], timeout: int | None, as_json: bool) -> int:
    """Start the stopped container of each SERVICE as it is, and wait until it answers. `up` looks at the profile again.

    \b
    Example:
      envgen start serve
    """
    _each(services.resume, session, names, timeout, as_json)
    return 0


def _each(
    act: Callable[[Session, str, int | None], tuple[Profile, Started]],
    session: Session,
    names: Sequence[str],
    timeout: int | None,
    as_json: bool,
) -> None:
    documents = []
    for name in names:
        profile, started = act(session, name, timeout)
        if as_json:
            documents.append(document(profile, name, started, waited=True))
        else:
            report(profile, name, started)
    if as_json:
        print_json(documents[0] if len(names) == 1 else documents)


@click.command()
@project_options
@click.option("-a", "--all", "everything", is_flag=True, help="Also what `envgen run` has started.")
@click.option("-q", "--quiet", "only_ids", is_flag=True, help="Only the containers' ids.")
@json_option
def ps(session: Session, everything: bool, only_ids: bool, as_json: bool) -> int:
    """Show the services of a profile: state, health, ports, and whether image and settings still are the profile's.

    \b
    Example:
      envgen ps
      envgen ps --profile prod --json
    """
    here = opened(session)
    profile = here.profile
    found = here.engine.containers(profile.compose_name, all=True)
    mine = [one for one in ours(found, here.root) if everything or not one.one_off]
    differ = {} if only_ids else changed(lambda: here, mine)
    rows = [as_data(one, here.digest, differ.get(one.id)) for one in mine]
    whose.note_older(here.engine, profile, here.root)
    if hidden := len(found) - len(ours(found, here.root)):
        other = whose.other_owner(here.engine, profile, here.root)
        progress(f"note: not shown: {hidden} of another folder, {other}")
    if as_json:
        print_json(rows)
    elif only_ids:
        for row in rows:
            click.echo(row["id"])
    elif not rows:
        click.echo(f"no containers for profile {profile.name}")
    else:
        click.echo("\n".join(table([COLUMNS, *(as_row(row) for row in rows)])))
        for name in sorted({str(row["service"]) for row in rows if row["open_ports"]}):
            if name in profile.services and (said := exposed(profile, name)):
                progress(f"note: {said}")
    return 0


COLUMNS = ("service", "state", "health", "ports", "image", "settings", "since", "container")


def as_data(container: Container, digest: str, differs: bool | None) -> dict[str, Any]:
    """A container for machines: null for what is not there, times with their zone.

    ``differs``: whether its settings are others than the profile's; None: not known.
    """
    current = container.labels.get("dev.envgen.render") == digest
    started = container.started_at
    return {
        "container": container.name,
        "exit_code": None if container.running or container.state == "created" else container.exit_code,
        "health": container.health or None,
        "id": container.id,
        "image": "current" if current else "older",
        "one_off": container.one_off,
        "open_ports": sorted({port.host for port in container.ports if not is_local(port.address)}),
        "ports": [str(port) for port in container.ports],
        "service": container.service,
        "settings": None if differs is None else "differ" if differs else "current",
        "since": None if started.startswith("0001-") or not started else started,
        "state": container.state,
    }


def as_row(row: dict[str, Any]) -> tuple[str, ...]:
    """The same for people."""
    code = row["exit_code"]
    return (
        row["service"] + (" (run)" if row["one_off"] else ""),
        row["state"] if code is None else f"{row['state']} ({code})",
        row["health"] or "-",
        ", ".join(row["ports"]) or "-",
        "current" if row["image"] == "current" else "older than the profile",
        row["settings"] or "-",
        (row["since"] or "-")[:19],
        row["container"],
    )


@click.command()
@click.argument("names", metavar="[SERVICE]...", nargs=-1)
@project_options_without_f
@click.option("-f", "--follow", is_flag=True, help="Go on until Ctrl-C.")
@click.option("-n", "--tail", type=click.IntRange(0, LARGEST), metavar="LINES", help="Only the last lines.")
@click.option("--since", metavar="TIME", help="Only what is younger: 10m, 2h, 2026-01-02T03:04:05Z.")
@click.option("-t", "--timestamps", is_flag=True, help="Each line with its time.")
def logs(
    session: Session, names: tuple[str, ...], follow: bool, tail: int | None, since: str | None, timestamps: bool
) -> int:
    """Show the output of each SERVICE, or of all services of the profile.

    The project file is chosen with --file here, because -f follows.

    \b
    Example:
      envgen logs serve -n 50
      envgen logs -f serve
      envgen logs -t --since 10m
    """
    here = opened(session)
    if not services.of_services(here, names, all=True):
        raise NotFoundError(f"no containers for {_whose(here.profile, names)}", hint=" ".join(["envgen up", *names]))
    words = ["--profile", "*", "logs", *(["--no-log-prefix"] if len(names) == 1 else [])]
    words += ["--timestamps"] if timestamps or len(names) != 1 else []
    words += ["--follow"] if follow else []
    words += ["--tail", str(tail)] if tail is not None else []
    words += [f"--since={since}"] if since is not None else []
    return show_log(here.compose, *words, *names)


@click.command()
@click.argument("names", metavar="SERVICE...", nargs=-1, required=True)
@project_options
@timeout_option
@json_option
def restart(session: Session, names: tuple[str, ...], timeout: int | None, as_json: bool) -> int:
    """Restart each SERVICE and wait until it answers: a running server keeps the kernels that it has loaded.

    \b
    Example:
      envgen restart serve
    """
    _each(services.restart, session, names, timeout, as_json)
    return 0


@click.command("exec", context_settings={"allow_interspersed_args": False})
@click.argument("service")
@click.argument("argv", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@project_options
@inside_options
def exec_(session: Session, service: str, argv: tuple[str, ...], inside: list[str], tty: bool) -> int:
    """Run a command in the running SERVICE. Options of envgen stand before SERVICE.

    Its exit code is the command's own.

    \b
    Example:
      envgen exec dev python3 -c 'import flashinfer; print(flashinfer.__file__)'
      envgen exec -u nobody -w /tmp -e LEVEL=2 dev env
    """
    words = command_of(argv)
    return _attach(session, service, words, inside, tty)


@click.command()
@click.argument("service", required=False)
@project_options
@inside_options
def shell(session: Session, service: str | None, inside: list[str], tty: bool) -> int:
    """Open a shell in the running SERVICE (default: dev, else the first of the profile).

    \b
    Example:
      envgen shell
      envgen shell serve
    """
    profile = session.profile()
    words = ["sh", "-c", "if command -v bash >/dev/null; then exec bash; else exec sh; fi"]
    return _attach(session, service or services.main_service(profile), words, inside, tty)


def _attach(session: Session, service: str, argv: Sequence[str], inside: Sequence[str], tty: bool) -> int:
    container = running(connect(), session.profile(), session.loaded().project.root, service)
    return attach(find_endpoint(), container.id, with_start_up(argv), options=inside, tty=tty)
