"""`envgen down`, `ps`, `logs`, `restart`, `exec`, `shell`: what is done with services that exist."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from envgen.app import services
from envgen.app.services import known_service, opened, running
from envgen.app.session import Session
from envgen.cli.common import LARGEST, json_option, print_json, project_options, project_options_without_f, show_log
from envgen.cli.services.up import report
from envgen.engine.base import Container, Engine
from envgen.engine.compose import Compose
from envgen.engine.docker import connect
from envgen.engine.endpoint import find_endpoint
from envgen.engine.terminal import attach
from envgen.profile.exposure import exposed, is_local
from envgen.profile.model import Profile
from envgen.render.environment import with_start_up
from envgen.text import progress, table


@click.command()
@project_options
@click.option("--volumes", is_flag=True, help="Also remove named volumes: caches and installed sources.")
@click.option("--dry-run", is_flag=True, help="Show what would be removed.")
@json_option
def down(session: Session, volumes: bool, dry_run: bool, as_json: bool) -> int:
    """Stop and remove the services of a profile. Volumes stay unless --volumes is given.

    \b
    Example:
      envgen down
      envgen down --profile prod --dry-run
    """
    here = opened(session)
    profile, engine, compose = here.profile, here.engine, here.compose
    found = engine.containers(profile.compose_name, all=True)
    names = sorted(container.name for container in found)
    doomed = _volumes(engine, compose) if volumes else []
    if not dry_run:
        for name in names:
            progress(f"  stopping and removing {name}")
        words = ["--volumes"] if volumes else []
        compose.run("--profile", "*", "down", "--remove-orphans", *words)
    if as_json:
        print_json({"containers": names, "dry_run": dry_run, "volumes": doomed})
        return 0
    verb = "would be removed" if dry_run else "removed"
    for kind, removed in (("container", names), ("volume", doomed)):
        for name in removed:
            click.echo(f"{kind} {name} {verb}")
    if not names and not doomed:
        click.echo(f"nothing of profile {profile.name} is there")
    return 0


def _volumes(engine: Engine, compose: Compose) -> list[str]:
    """The named volumes of the rendered file that exist."""
    config = json.loads(compose.run("--profile", "*", "config", "--format", "json").stdout)
    names = [str(volume.get("name", key)) for key, volume in (config.get("volumes") or {}).items()]
    return sorted(name for name in names if engine.volume(name) is not None)


@click.command()
@project_options
@json_option
def ps(session: Session, as_json: bool) -> int:
    """Show the services of a profile: state, health, ports, and whether the image still agrees with the profile.

    \b
    Example:
      envgen ps
      envgen ps --profile prod --json
    """
    here = opened(session)
    profile = here.profile
    rows = [_row(one, here.digest) for one in here.engine.containers(profile.compose_name, all=True)]
    if as_json:
        print_json(rows)
        return 0
    if not rows:
        click.echo(f"nothing of profile {profile.name} is there")
        return 0
    titles = ("service", "state", "health", "ports", "image", "since", "container")
    lines = [titles, *(tuple(str(row[title]) for title in titles) for row in rows)]
    click.echo("\n".join(table(lines)))
    for name in sorted({str(row["service"]) for row in rows if row["open_ports"]}):
        if name in profile.services and (said := exposed(profile, name)):
            progress(f"note: {said}")
    return 0


def _row(container: Container, digest: str) -> dict[str, object]:
    current = container.labels.get("dev.envgen.render") == digest
    return {
        "container": container.name,
        "health": container.health or "-",
        "image": "current" if current else "older than the profile",
        "open_ports": sorted({port.host for port in container.ports if not is_local(port.address)}),
        "ports": ", ".join(str(port) for port in container.ports) or "-",
        "service": container.service,
        "since": container.started_at[:19],
        "state": container.state if container.running else f"{container.state} ({container.exit_code})",
    }


@click.command()
@click.argument("service", required=False)
@project_options_without_f
@click.option("-f", "--follow", is_flag=True, help="Go on until Ctrl-C.")
@click.option("-n", "--tail", type=click.IntRange(0, LARGEST), metavar="LINES", help="Only the last lines.")
def logs(session: Session, service: str | None, follow: bool, tail: int | None) -> int:
    """Show the output of SERVICE, or of all services of the profile.

    The project file is chosen with --file here, because -f follows.

    \b
    Example:
      envgen logs serve -n 50
      envgen logs -f serve
    """
    here = opened(session)
    words = ["--profile", "*", "logs", "--no-log-prefix" if service else "--timestamps"]
    words += ["--follow"] if follow else []
    words += ["--tail", str(tail)] if tail is not None else []
    if service:
        known_service(here.profile, service)
        words.append(service)
    return show_log(here.compose, *words)


@click.command()
@click.argument("service")
@project_options
@click.option("--timeout", type=click.IntRange(1, LARGEST), metavar="SECONDS", help="Give up waiting after this long.")
@json_option
def restart(session: Session, service: str, timeout: int | None, as_json: bool) -> int:
    """Restart SERVICE and wait until it answers: a running server keeps the kernels that it has loaded.

    \b
    Example:
      envgen restart serve
    """
    profile, started = services.restart(session, service, timeout)
    report(profile, service, started, waited=True, as_json=as_json)
    return 0


@click.command("exec", context_settings={"ignore_unknown_options": True})
@click.argument("service")
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED)
@project_options
def exec_(session: Session, service: str, argv: tuple[str, ...]) -> int:
    """Run a command in the running SERVICE. Options of envgen stand before SERVICE or before `--`.

    Its exit code is the command's own.

    \b
    Example:
      envgen exec dev -- python3 -c 'import flashinfer; print(flashinfer.__file__)'
    """
    return _attach(session.profile(), service, argv)


@click.command()
@click.argument("service", required=False)
@project_options
def shell(session: Session, service: str | None) -> int:
    """Open a shell in the running SERVICE (default: dev, else the first of the profile).

    \b
    Example:
      envgen shell
      envgen shell serve
    """
    profile = session.profile()
    name = service or ("dev" if "dev" in profile.services else next(iter(profile.services), ""))
    return _attach(profile, name, ["sh", "-c", "if command -v bash >/dev/null; then exec bash; else exec sh; fi"])


def _attach(profile: Profile, service: str, argv: Sequence[str]) -> int:
    return attach(find_endpoint(), running(connect(), profile, service).id, with_start_up(argv))
