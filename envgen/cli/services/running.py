"""Commands on the services of a profile: `envgen up`, `down`, `ps`, `logs`, `exec` and their like."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from functools import partial
from typing import Any

import click

from envgen.app import nodes, services
from envgen.app.build import pull as pull_base
from envgen.app.places import as_data, changed, each, place_of, places
from envgen.app.session import Session
from envgen.cli.common import (
    LARGEST,
    F,
    answer,
    ask,
    project_options,
    project_options_without_f,
    reporting,
    show_logs,
    variant_option,
    wants_json,
)
from envgen.cli.images import make
from envgen.engine.compose import attach
from envgen.engine.owner import ours
from envgen.errors import EnvgenError, ExitCode, NotFoundError, UsageError
from envgen.live import moving
from envgen.profile.exposure import exposed, open_ports
from envgen.profile.model import Profile
from envgen.render.environment import with_start_up
from envgen.serve.launch import Started
from envgen.text import progress, short_id, table

timeout_option = click.option(
    "--timeout", type=click.IntRange(1, LARGEST), metavar="SECONDS", help="Give up waiting after this long."
)
node_option = click.option("--node", metavar="NAME", help="For a service with `cluster`: the machine.")


def inside_options(function: F) -> F:
    """Docker's options of a command in a container; the verb gets them as ``inside``, and ``tty``: one is allowed."""

    @click.option("-e", "--env", "variables", multiple=True, metavar="NAME[=VALUE]", help="Set a variable.")
    @click.option("-u", "--user", metavar="USER", help="Run as this user (name or number).")
    @click.option("-w", "--workdir", metavar="FOLDER", help="Run in this folder.")
    @click.option("-i", "--interactive", is_flag=True, help="No effect: standard input is always passed on.")
    @click.option("-t", "--tty", "wanted", is_flag=True, help="Use a terminal (default if there is one).")
    @click.option("-T", "--no-tty", is_flag=True, help="Do not use a terminal.")
    @functools.wraps(function)
    def wrapper(
        *args: Any, variables: tuple[str, ...], user: str | None, workdir: str | None, interactive: bool, wanted: bool,
        no_tty: bool, **kwargs: Any,
    ) -> Any:  # fmt: skip
        given = [*(("env", one) for one in variables), ("user", user), ("workdir", workdir)]
        words = [f"--{name}={value}" for name, value in given if value is not None]
        return function(*args, inside=words, tty=not no_tty, **kwargs)

    return wrapper  # type: ignore[return-value]


def command_of(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The command behind SERVICE, with or without `--`. UsageError for a misplaced option."""
    words = argv[1:] if argv[:1] == ("--",) else argv
    if not words:
        raise UsageError("no command given", hint="write it after SERVICE")
    if words is argv and words[0].startswith("-"):
        raise UsageError(f"{words[0]} is not a command", hint="envgen's options come before SERVICE")
    return words


@click.command()
@click.argument("names", metavar="[SERVICE]...", nargs=-1)
@reporting
@variant_option
@click.option("--build", "build_first", is_flag=True, help="Build the image first if it is not up to date.")
@click.option("--no-wait", is_flag=True, help="Return as soon as the container is created.")
@timeout_option
@click.option(
    "-d",
    "--detach",
    is_flag=True,
    expose_value=False,
    help="No effect: `up` always detaches. `envgen logs -f` follows.",
)
@click.option("--no-predict", is_flag=True, help="Skip asking vLLM which kernels it would choose.")
@click.option("--recreate", is_flag=True, help="Replace a running container whose settings differ, without asking.")
@click.option("--stay", is_flag=True, help="Keep watching a service with `cluster`; if one part fails, stop all.")
def up(
    session: Session, names: tuple[str, ...], build_first: bool, no_wait: bool, timeout: int | None,
    no_predict: bool, recreate: bool, stay: bool,
) -> int:  # fmt: skip
    """Start each SERVICE (default: all of the profile), and wait until it answers.

    It first checks that the image is current, mounted checkouts exist, ports are free, and memory, GPU and weights are
    available, and asks vLLM in the image which kernels it would choose (`envgen predict`). If a check fails, nothing
    starts (exit code 6); if only weights are missing, it offers to download them.

    A service is ready when the model is listed, a prompt is answered (and a chat and a tool call, where the server
    supports them), and the log shows what `ready` expects. If it fails, its logs and state are saved in a crash bundle,
    and its container is removed (exit code 5). Ctrl-C stops the waiting, not the service.

    Services start in parallel, except that models load onto a GPU one after the other.

    A running service is left alone. If its settings differ from the profile's, up shows the differences and replaces it
    only with --recreate or after you confirm (otherwise exit code 6). It never touches what another folder runs
    under the same name (exit code 6).

    A service with `cluster` starts on all its machines, after `envgen nodes check`: workers first, then the head. If
    one ends, up names it, saves a crash bundle and stops all. --stay keeps watching once the service is ready.

    \b
    Example:
      envgen up serve
      envgen up --build dev serve
      envgen up serve --variant cutlass
      envgen up serve --set services.serve.args.max-model-len=8192
    """
    if stay and (len(names) != 1 or no_wait):
        raise UsageError("--stay is for one service, without --no-wait")
    if stay:
        nodes.choose(session.profile(), names[0])
    if build_first:
        make(session)
    with moving("checking"):
        checked = services.check_all(session.deployment(), names, ask, predict=not no_predict)
    documents: list[dict[str, Any]] = []
    try:
        with moving("starting"):
            for one, started in services.start_all(checked, ask, wait=not no_wait, recreate=recreate, timeout=timeout):
                documents.append(document(one.here.profile, one.service, started, waited=not no_wait))
                if not wants_json():
                    report(one.here.profile, one.service, started, waited=not no_wait)
    except EnvgenError as error:
        error.details = {"started": documents}
        raise
    answer(documents[0] if len(names) == 1 else documents)
    if stay:
        checked[0].group.stay()
    return 0


def document(profile: Profile, service: str, started: Started, *, waited: bool) -> dict[str, Any]:
    """How a start ended, for machines."""
    container, awaited = started.container, started.awaited
    return {
        "already_running": started.already,
        "chats": {name: {"good": good, "seen": seen} for name, (good, seen) in awaited.answer.chats.items()},
        "completion": awaited.answer.text,
        "container": container.name,
        "health": container.health,
        "first_token_seconds": round(awaited.answer.first_token, 3),
        "id": container.id,
        "image": container.image_id,
        "log_shows": awaited.shown,
        "open_ports": list(open_ports(profile.services[service])),
        "phases": awaited.phases,
        "restarts": awaited.restarts,
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
        click.echo(f"  completed {awaited.prompt!r} with {awaited.answer.text!r}")
    for name, (good, seen) in awaited.answer.chats.items():
        click.echo(f"  {name}: {seen}" + ("" if good else " (not checked)"))
    if awaited.phases:
        click.echo("  " + ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in awaited.phases.items()))
    for name, line in awaited.shown.items():
        click.echo(f"  {name}: {line.strip()[:160]}")
    if awaited.restarts:
        look = f"envgen logs {service} {profile.chosen}"
        click.echo(f"  Docker restarted it {awaited.restarts} times on the way: {look}")


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("argv", metavar="[SERVICE] [--] COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@project_options
@variant_option
@inside_options
def run(session: Session, argv: tuple[str, ...], inside: list[str], tty: bool) -> int:
    """Run a command in a new container with the image, mounts and environment of a service; it is removed afterwards.

    If the first word names a service of the profile, it is SERVICE; otherwise `dev`, or the first service.
    Ports are not published. The exit code is the command's own; Ctrl-C goes to the command.

    \b
    Example:
      envgen run -- python3 -c 'import vllm; print(vllm.__file__)'
      envgen run -e LEVEL=2 serve env
    """
    profile = session.profile()
    service, words = (argv[0], argv[1:]) if argv[0] in profile.services else (services.main_service(profile), argv)
    return services.one_off(session.deployment(), service, command_of(words), inside, tty=tty)


@click.command()
@reporting
def pull(session: Session) -> int:
    """Pull the base image of the profile: the digest in envgen.lock, or else the newest image of its tag.

    The images of services are built, not pulled: `envgen build`.

    \b
    Example:
      envgen pull --profile prod
    """
    name, image_id = pull_base(session)
    return answer({"image": name, "id": image_id}, [f"pulled {name} ({short_id(image_id)})"])


@click.command()
@click.argument("names", metavar="[SERVICE]...", nargs=-1)
@reporting
@click.option("-v", "--volumes", is_flag=True, help="Also remove named volumes: caches and installed sources.")
@click.option("--dry-run", is_flag=True, help="Show what would be removed.")
def down(session: Session, names: tuple[str, ...], volumes: bool, dry_run: bool) -> int:
    """Stop and remove each SERVICE, or all services of the profile. Volumes stay unless --volumes is given.

    \b
    Example:
      envgen down web
      envgen down --profile prod --dry-run
    """
    if names and volumes:
        raise UsageError("the services of a profile share their volumes", hint="envgen down --volumes")
    profile, found = session.profile(), places(session.deployment(), names)
    work = partial(services.remove, names=names, volumes=volumes, dry_run=dry_run)
    done, left = each(found, work)
    containers = [here.named(name) for here, (gone, _) in done for name in gone]
    doomed = [here.named(name) for here, (_, gone) in done for name in gone]
    verb = "would be removed" if dry_run else "removed"
    lines = [f"container {name} {verb}" for name in containers] + [f"volume {name} {verb}" for name in doomed]
    document = {"containers": containers, "dry_run": dry_run, "left": left, "volumes": doomed}
    nothing = not (lines or left or wants_json())
    return _ended(document, [f"no containers for {_described(profile, names)}"] if nothing else lines, left)


def _ended(document: Any, lines: Sequence[str], left: Sequence[str]) -> int:
    """Print the document, or the lines; and what could not be done on machines that do not answer."""
    answer(document, lines)
    for line in left:
        progress(line, always=True)
    return ExitCode.ENGINE if left else ExitCode.OK


def _described(profile: Profile, names: Sequence[str]) -> str:
    return f"{', '.join(names)} of profile {profile.name}" if names else f"profile {profile.name}"


@click.command()
@click.argument("names", metavar="[SERVICE]...", nargs=-1)
@reporting
def stop(session: Session, names: tuple[str, ...]) -> int:
    """Stop each SERVICE, or all services of the profile. Their containers stay: `envgen start` starts them again.

    \b
    Example:
      envgen stop serve
    """
    done, left = each(places(session.deployment(), names), partial(services.halt, names=names))
    found = [here.named(name) for here, stopped in done for name in stopped]
    lines = [f"container {name} stopped" for name in found]
    if not found and not left:
        lines = [f"no running containers for {_described(session.profile(), names)}"]
    return _ended({"containers": found, "left": left}, lines, left)


@click.command()
@click.argument("names", metavar="SERVICE...", nargs=-1, required=True)
@reporting
@timeout_option
def start(session: Session, names: tuple[str, ...], timeout: int | None) -> int:
    """Start the stopped container of each SERVICE unchanged, and wait until it answers. `up` applies the profile.

    \b
    Example:
      envgen start serve
    """
    return _again("start", session, names, timeout)


def _again(verb: str, session: Session, names: Sequence[str], timeout: int | None) -> int:
    documents = []
    for name in names:
        with moving(f"{name}: {verb}"):
            profile, started = services.again(verb, session, name, timeout)
        documents.append(document(profile, name, started, waited=True))
        if not wants_json():
            report(profile, name, started)
    return answer(documents[0] if len(names) == 1 else documents)


@click.command()
@reporting
@click.option("-a", "--all", "everything", is_flag=True, help="Include containers started by `envgen run`.")
@click.option("-q", "--quiet", "only_ids", is_flag=True, help="Print only container IDs.")
def ps(session: Session, everything: bool, only_ids: bool) -> int:
    """Show the services of a profile: state, health, ports, and whether image and settings match the profile.

    \b
    Example:
      envgen ps --profile prod --json
    """
    profile, found = session.profile(), places(session.deployment())
    rows = []
    for here in found.found:
        there = here.engine.containers(profile.compose_name, all=True)
        mine = [one for one in ours(there, here.root) if everything or not one.one_off]
        differ = {} if only_ids else changed(lambda: here, mine)  # noqa: B023
        rows += [as_data(one, here.digest, differ.get(one.id), here.node) for one in mine]
        if hidden := len(there) - len(ours(there, here.root)):
            progress(f"note: {here.named('not shown')}: {hidden} of another folder, {here.other_folder()}")
        if here.node and not mine:
            progress(f"note: {here.named('no containers')}")
    lines = [str(row["id"]) for row in rows] if only_ids else listing(rows) if rows else []
    if not (rows or only_ids or found.lost):
        lines = [f"no containers for profile {profile.name}"]
    for name in sorted({str(row["service"]) for row in rows if row["open_ports"] and not (only_ids or wants_json())}):
        if name in profile.services and (exposure := exposed(profile, name)):
            progress(f"note: {exposure}")
    return _ended(rows, lines, [str(error) for error in found.lost.values()])


def listing(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The lines of a table of containers; with their machines, where they are on several."""
    lines = [COLUMNS, *(as_row(row) for row in rows)]
    if any(row["node"] for row in rows):
        marks = ["node", *(str(row["node"] or "(here)") for row in rows)]
        lines = [(mark, *line) for mark, line in zip(marks, lines, strict=True)]
    return table(lines)


COLUMNS = ("service", "state", "health", "ports", "image", "settings", "since", "container")


def as_row(row: dict[str, Any]) -> tuple[str, ...]:
    """The same for people."""
    code = row["exit_code"]
    return (
        row["service"] + (" (run)" if row["one_off"] else "") + (f" ({row['variant']})" if row.get("variant") else ""),
        row["state"] if code is None else f"{row['state']} ({code})",
        (row["health"] or "-") + (f" since {row['health_since'][11:19]}Z" if row.get("health_since") else ""),
        ", ".join(row["ports"]) or "-",
        "current" if row["image"] == "current" else "older than the profile",
        row["settings"] or "-",
        (row["since"] or "-")[:19],
        row["container"],
    )


@click.command()
@click.argument("names", metavar="[SERVICE]...", nargs=-1)
@project_options_without_f
@click.option("-f", "--follow", is_flag=True, help="Follow the output until Ctrl-C.")
@click.option("-n", "--tail", type=click.IntRange(0, LARGEST), metavar="LINES", help="Only the last lines.")
@click.option("--since", metavar="TIME", help="Only lines since TIME: 10m, 2h, 2026-01-02T03:04:05Z.")
@click.option("-t", "--timestamps", is_flag=True, help="Show timestamps.")
@node_option
def logs(
    session: Session, names: tuple[str, ...], follow: bool, tail: int | None, since: str | None, timestamps: bool,
    node: str | None,
) -> int:  # fmt: skip
    """Show the output of each SERVICE, or of all services of the profile.

    Here -f means --follow: name the project file with --file.

    \b
    Example:
      envgen logs -t --since 10m
      envgen logs -f serve --node spark-2
    """
    found = places(session.deployment(), names, node)
    for error in found.lost.values():
        progress(f"{error}", always=True)
    having = [here for here in found.found if here.containers(names, all=True)]
    if not having and not found.lost:
        profile = session.profile()
        raise NotFoundError(
            f"no containers for {_described(profile, names)}",
            hint=" ".join(["envgen up --profile", profile.name, *names]),
        )
    alone = len(names) == 1
    given = {
        "--no-log-prefix": alone, "--timestamps": timestamps or not alone, "--follow": follow,
        f"--tail={tail}": tail is not None, f"--since={since}": since is not None,
    }  # fmt: skip
    words = ["--profile", "*", "logs", *(word for word, wanted in given.items() if wanted)]
    code = show_logs({here.node: here.compose for here in having}, *words, *names)
    return code or (ExitCode.ENGINE if found.lost else ExitCode.OK)


@click.command()
@click.argument("names", metavar="SERVICE...", nargs=-1, required=True)
@reporting
@timeout_option
def restart(session: Session, names: tuple[str, ...], timeout: int | None) -> int:
    """Restart each SERVICE (or start a stopped one), and wait until it answers.

    Use it to load recompiled kernels: a running server keeps those that it has loaded.

    \b
    Example:
      envgen restart serve
    """
    return _again("restart", session, names, timeout)


@click.command("exec", context_settings={"allow_interspersed_args": False})
@click.argument("service")
@click.argument("argv", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@project_options
@inside_options
@node_option
def exec_(
    session: Session, service: str, argv: tuple[str, ...], inside: list[str], tty: bool, node: str | None
) -> int:  # fmt: skip
    """Run a command in the running SERVICE. envgen's options come before SERVICE.

    The exit code is the command's. On several machines it runs on the first, or on --node.

    \b
    Example:
      envgen exec dev python3 -c 'import flashinfer; print(flashinfer.__file__)'
      envgen exec -u nobody -w /tmp -e LEVEL=2 dev env
    """
    return _attach(session, service, node, command_of(argv), inside, tty)


@click.command()
@click.argument("service", required=False)
@project_options
@inside_options
@node_option
def shell(session: Session, service: str | None, inside: list[str], tty: bool, node: str | None) -> int:
    """Open a shell in the running SERVICE (default: dev, else the first of the profile).

    \b
    Example:
      envgen shell serve
    """
    profile = session.profile()
    words = ["sh", "-c", "if command -v bash >/dev/null; then exec bash; else exec sh; fi"]
    return _attach(session, service or services.main_service(profile), node, words, inside, tty)


def _attach(
    session: Session, service: str, node: str | None, argv: Sequence[str], inside: Sequence[str], tty: bool
) -> int:
    here = place_of(session.deployment(), service, node)
    container = here.running(service)
    return attach(here.compose.endpoint, container.id, with_start_up(argv), options=inside, tty=tty)
