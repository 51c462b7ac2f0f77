"""Commands for the services of a profile: `envgen up`, `down`, `ps`, `logs`, `exec` and others."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import click

from envgen.app import lifecycle, provision
from envgen.app import up as use_case
from envgen.app.build import pull as pull_base
from envgen.app.cluster.machines import machine_of, machines_of, on_all
from envgen.app.containers import as_data, changed
from envgen.app.session import Session
from envgen.app.start import Checked, StartOptions
from envgen.app.stay import notify_ready
from envgen.cli.common import (
    Count,
    F,
    answer,
    ask,
    project_options,
    project_options_without_f,
    reporting,
    show_logs,
    variant_option,
    wants_json,
    warn_of_unused,
)
from envgen.cli.images import provide
from envgen.engine.compose import attach
from envgen.engine.owner import ours
from envgen.errors import EnvgenError, ExitCode, NotFoundError, Problem, UsageError
from envgen.live import moving
from envgen.profile.exposure import exposed, open_ports
from envgen.profile.model import Profile
from envgen.render.environment import with_start_up
from envgen.serve.ended import last_ends
from envgen.serve.launch import Started
from envgen.serve.preflight import PreflightError
from envgen.text import progress, short_id, table

timeout_option = click.option(
    "--timeout", type=Count(1), metavar="SECONDS", help="Stop waiting after this long (default: ready.timeout)."
)
node_option = click.option("--node", metavar="NAME", help="The machine, for a service with `cluster`.")


def inside_options(function: F) -> F:
    """Add the options of `docker exec`; the command receives them as ``inside``, and ``tty`` (False with -T)."""

    @click.option("-e", "--env", "variables", multiple=True, metavar="NAME[=VALUE]", help="Set a variable.")
    @click.option("-u", "--user", metavar="USER", help="Run as this user (name or number).")
    @click.option("-w", "--workdir", metavar="FOLDER", help="Run in this folder.")
    @click.option("-i", "--interactive", is_flag=True, help="No effect: standard input is always connected.")
    @click.option("-t", "--tty", "wanted", is_flag=True, help="Allocate a terminal (default if this is one).")
    @click.option("-T", "--no-tty", is_flag=True, help="Do not allocate a terminal.")
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
    """The command after SERVICE and an optional `--`. UsageError for a misplaced option."""
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
@click.option("-y", "--yes", is_flag=True, help="Make what is missing (lock, image, weights) without asking.")
@click.option("--build", "build_first", is_flag=True, help="Build the image first if it is not up to date.")
@click.option("--no-wait", is_flag=True, help="Return as soon as the containers are created.")
@timeout_option
@click.option(
    "-d",
    "--detach",
    is_flag=True,
    expose_value=False,
    help="No effect: containers always run in the background. See `envgen logs -f`.",
)
@click.option("--no-predict", is_flag=True, help="Skip asking vLLM which kernels it would choose.")
@click.option("--recreate", is_flag=True, help="Make a new container, even if nothing differs; caches stay.")
@click.option("--stay", is_flag=True, help="Keep watching; exit with 5 if it ends by itself (for a systemd unit).")
def up(
    session: Session, names: tuple[str, ...], yes: bool, build_first: bool, no_wait: bool, timeout: int | None,
    no_predict: bool, recreate: bool, stay: bool,
) -> int:  # fmt: skip
    """Start each SERVICE (default: all of the profile), and wait until it answers.

    Checks first that the image is current, that mounted checkouts exist, that ports are free, and that memory, GPU and
    weights are available. It also asks vLLM which kernels it would choose (`envgen predict`). If a check fails, nothing
    starts (exit code 6).

    If only the lock, the image or the weights are missing, it lists what is missing and how large it is, asks once,
    and makes all of it: weights download while the image is built. After an interruption, the same command continues.

    A service is ready when it lists the model, answers a prompt (and a chat and a tool call, if it supports them), and
    the log matches `ready`. If it fails, its log and state are saved in a crash bundle, and its container is removed
    (exit code 5). Ctrl-C stops the waiting, not the service.

    A running service is left alone. If its settings differ from the profile, the differences are shown, and it is
    replaced only with --recreate or after you confirm (otherwise exit code 6). --recreate always makes a new container.

    For a service with `cluster`, the checks of `envgen nodes check` run first; then it starts on all its machines. If
    one machine fails, a crash bundle is saved, and the service is stopped on all.

    --stay keeps watching, and ends with 0 when the service is stopped on purpose. If the service ends by itself, and
    Docker does not restart it, a crash bundle is saved (exit code 5). With `cluster`, all machines are watched.

    \b
    Examples:
      envgen up serve --yes
      envgen up --build dev serve
      envgen up serve --variant cutlass
      envgen up serve --set services.serve.args.max-model-len=8192
    """
    if stay and (len(names) != 1 or no_wait):
        raise UsageError("--stay is for one service, without --no-wait")
    warn_of_unused(session)
    if build_first:
        provide(session, provision.to_build(session, names))
    checked = _checked(session, names, yes=yes, predict=not no_predict)
    options = StartOptions(not no_wait, recreate, timeout)
    documents: list[dict[str, Any]] = []
    try:
        with moving("starting"):
            for one, started in use_case.start_all(checked, ask, options):
                if not (no_wait or started.already) and len(one.machines) == 1:
                    provision.remember_modules(one.deployment)
                documents.append(document(one.deployment.profile, one.service, started, waited=not no_wait))
                if not wants_json():
                    report(one.deployment.profile, one.service, started, waited=not no_wait)
    except EnvgenError as error:
        error.details = {"started": documents}
        raise
    answer(documents[0] if len(names) == 1 else documents)
    if stay:
        notify_ready(f"{names[0]} is {'running' if started.awaited.answer.unasked else 'ready'}")
        checked[0].stay(started.container)
    return 0


def _checked(session: Session, names: tuple[str, ...], *, yes: bool, predict: bool) -> tuple[Checked, ...]:
    """The services, checked; what is missing is made first, if the user agrees. PreflightError otherwise."""
    with moving("checking"):
        try:
            return use_case.check_all(session.deployment(), names, predict=predict)
        except PreflightError as error:
            if not error.only_lacking:
                raise
            refused, lacking = error, provision.look(session, names)
    if not lacking:
        raise refused
    lines = ["missing, and made now:" if yes else "missing, and `up` can make it:", *lacking.lines()]
    if yes:
        progress("\n".join(lines))
    elif not ask("\n".join([*lines, "Do this now?"])):
        command = " ".join(filter(None, ("envgen up", *names, "--yes", lacking.deployment.profile.chosen_variant)))
        refused.problems = (
            *(replace(problem, hint="") for problem in refused.problems),
            Problem("\n".join(lines), hint=command),
        )
        raise refused
    provide(session, lacking)
    with moving("checking"):
        return use_case.check_all(session.deployment(), names, predict=predict)


def document(profile: Profile, service: str, started: Started, *, waited: bool) -> dict[str, Any]:
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
        + (" (reachable from the network)" if open_ports(profile.services[service]) else "")
        + unasked
    )
    if awaited.answer.text:
        click.echo(f"  completed {awaited.prompt!r} with {awaited.answer.text!r}")
    for name, (good, seen) in awaited.answer.chats.items():
        click.echo(f"  {name}: {seen}" if good else f"  {name}: not tried: {seen}")
    if awaited.phases:
        click.echo("  " + ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in awaited.phases.items()))
    for name, line in awaited.shown.items():
        click.echo(f"  {name}: {line.strip()[:160]}")
    if awaited.restarts:
        click.echo(f"  Docker restarted it {awaited.restarts} times: envgen logs {service} {profile.chosen}")


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("argv", metavar="[SERVICE] [--] COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@project_options
@variant_option
@inside_options
def run(session: Session, argv: tuple[str, ...], inside: list[str], tty: bool) -> int:
    """Run a command in a new container of SERVICE, and remove the container afterwards.

    The container has the image, mounts and environment of SERVICE (default: dev, or the first one), but publishes no
    ports. The exit code is that of the command.

    \b
    Examples:
      envgen run -- python3 -c 'import vllm; print(vllm.__file__)'
      envgen run -e LEVEL=2 serve env
    """
    profile = session.profile()
    service, words = (argv[0], argv[1:]) if argv[0] in profile.services else (use_case.main_service(profile), argv)
    return lifecycle.one_off(session.deployment(), service, command_of(words), inside, tty=tty)


@click.command()
@reporting
def pull(session: Session) -> int:
    """Pull the base image of the profile: the digest in envgen.lock or, without a lock, the newest image of the tag.

    `envgen build` builds the images of services on top of it.

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
@click.option("--dry-run", is_flag=True, help="Show what would be removed; change nothing.")
def down(session: Session, names: tuple[str, ...], volumes: bool, dry_run: bool) -> int:
    """Stop and remove the containers of each SERVICE (default: all of the profile).

    Without SERVICE, those that `envgen run` has started end, too. Volumes stay, unless --volumes is given. A volume
    that another folder with this project's name created is removed only after you confirm (otherwise exit code 6).

    \b
    Examples:
      envgen down serve
      envgen down --profile prod --dry-run
    """
    if names and volumes:
        raise UsageError("the services of a profile share their volumes", hint="envgen down --volumes")
    profile, found = session.profile(), machines_of(session.deployment(), names)
    work = partial(lifecycle.remove, names=names, volumes=volumes, dry_run=dry_run, agree=ask)
    done, left = on_all(found, work)
    containers = [deployment.named(name) for deployment, removed in done for name in removed.containers]
    removed_volumes = [deployment.named(name) for deployment, removed in done for name in removed.volumes]
    kept = {
        deployment.named(name): str(folder) for deployment, removed in done for name, folder in removed.kept.items()
    }
    verb, stays = ("would be removed", "would stay") if dry_run else ("removed", "stays")
    lines = [f"container {name} {verb}" for name in containers] + [f"volume {name} {verb}" for name in removed_volumes]
    lines += [f"volume {name} {stays}: {folder} created it" for name, folder in kept.items()]
    document = {"containers": containers, "dry_run": dry_run, "kept": kept, "left": left, "volumes": removed_volumes}
    nothing = not (lines or left or wants_json())
    code = _ended(document, [f"no containers for {_described(profile, names)}"] if nothing else lines, left)
    return ExitCode.REFUSED if kept and not dry_run and not code else code


def _ended(document: Any, lines: Sequence[str], left: Sequence[str]) -> int:
    """Print the document or the lines, and ``left``: what machines that do not answer still need."""
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
    """Stop the containers of each SERVICE (default: all of the profile), and keep them.

    `envgen start` starts them again.

    \b
    Example:
      envgen stop serve
    """
    done, left = on_all(machines_of(session.deployment(), names), partial(lifecycle.halt, names=names))
    found = [deployment.named(name) for deployment, stopped in done for name in stopped]
    lines = [f"container {name} stopped" for name in found]
    if not found and not left:
        lines = [f"no running containers for {_described(session.profile(), names)}"]
    return _ended({"containers": found, "left": left}, lines, left)


@click.command()
@click.argument("names", metavar="SERVICE...", nargs=-1, required=True)
@reporting
@timeout_option
def start(session: Session, names: tuple[str, ...], timeout: int | None) -> int:
    """Start the stopped container of each SERVICE again, and wait until it answers.

    The container stays as it was created; `envgen up` applies changes of the profile.

    \b
    Example:
      envgen start serve
    """
    return _again("start", session, names, timeout)


def _again(verb: str, session: Session, names: Sequence[str], timeout: int | None) -> int:
    documents = []
    for name in names:
        with moving(f"{name}: {verb}"):
            profile, started = lifecycle.again(verb, session, name, timeout)
        documents.append(document(profile, name, started, waited=True))
        if not wants_json():
            report(profile, name, started)
    return answer(documents[0] if len(names) == 1 else documents)


@click.command()
@reporting
@click.option("-a", "--all", "everything", is_flag=True, help="Include containers started by `envgen run`.")
@click.option("-q", "--quiet", "only_ids", is_flag=True, help="Print only container IDs.")
def ps(session: Session, everything: bool, only_ids: bool) -> int:
    """List the services of a profile: state, health, ports, and whether image and settings match the profile.

    A server that has ended by itself is a FAIL with the cause from its log (exit code 1).

    \b
    Example:
      envgen ps --profile prod --json
    """
    profile, found = session.profile(), machines_of(session.deployment())
    rows = []
    for deployment in found.found:
        there = deployment.engine.containers(profile.compose_name, all=True)
        mine = [container for container in ours(there, deployment.root) if everything or not container.one_off]
        differ = {} if only_ids else changed(lambda: deployment, mine)  # noqa: B023
        described = [one for one in mine if one.service in profile.services and not only_ids]
        ends = last_ends(deployment.engine, described)
        rows += [as_data(one, deployment.digest, differ.get(one.id), deployment.node, ends.get(one.id)) for one in mine]
        if hidden := len(there) - len(ours(there, deployment.root)):
            progress(f"note: {deployment.named('not shown')}: {hidden} of another folder, {deployment.other_folder()}")
        if deployment.node and not mine:
            progress(f"note: {deployment.named('no containers')}")
    lines = [str(row["id"]) for row in rows] if only_ids else [*listing(rows), *endings(rows, profile.chosen)]
    if not (rows or only_ids or found.lost):
        lines = [f"no containers for profile {profile.name}"]
    for name in sorted({str(row["service"]) for row in rows if row["open_ports"] and not (only_ids or wants_json())}):
        if name in profile.services and (exposure := exposed(profile, name)):
            progress(f"note: {exposure}")
    return _ended(rows, lines, [str(error) for error in found.lost.values()]) or code_of(rows)


def code_of(rows: Sequence[dict[str, Any]]) -> int:
    """The exit code for containers: whether one has ended by itself."""
    return ExitCode.FINDINGS if any(row["ended"] and row["ended"]["failed"] for row in rows) else ExitCode.OK


def endings(rows: Sequence[dict[str, Any]], chosen: str) -> list[str]:
    """What has ended by itself, and what Docker has started again. ``chosen``: the options of a command for it."""
    lines = []
    for row in rows:
        end, service = row["ended"], row["service"]
        if end and not end["asked"]:
            lines += ["", f"{'FAIL' if end['failed'] else 'note'}  {end['text']}"]
            lines += [f"      cause: {end['why']}"] if end["why"] else []
            if end["failed"]:
                lines += [
                    f"      more:  envgen explain {service} {chosen}",
                    f"      fix:   envgen up {service} {chosen}",
                ]
            else:
                lines.append(f"      log:   envgen logs {chosen} {service}")
    return lines


def listing(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A table of containers; with a column for the machine if there are several. No lines without rows."""
    if not rows:
        return []
    lines = [COLUMNS, *(_row(row) for row in rows)]
    if any(row["node"] for row in rows):
        machines = ["node", *(str(row["node"] or "(here)") for row in rows)]
        lines = [(machine, *line) for machine, line in zip(machines, lines, strict=True)]
    return table(lines)


COLUMNS = ("service", "state", "health", "ports", "image", "settings", "since", "container")


def _row(row: dict[str, Any]) -> tuple[str, ...]:
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
@click.option("-f", "--follow", is_flag=True, help="Keep printing new output, until Ctrl-C.")
@click.option("-n", "--tail", type=Count(0), metavar="LINES", help="Print only the last LINES lines.")
@click.option("--since", metavar="TIME", help="Print only lines since TIME: 10m, 2h, 2026-01-02T03:04:05Z.")
@click.option("-t", "--timestamps", is_flag=True, help="Print a timestamp before each line.")
@node_option
def logs(
    session: Session, names: tuple[str, ...], follow: bool, tail: int | None, since: str | None, timestamps: bool,
    node: str | None,
) -> int:  # fmt: skip
    """Print the output of each SERVICE (default: all of the profile).

    For this command, -f is short for --follow, not for --file.

    \b
    Examples:
      envgen logs -t --since 10m
      envgen logs -f serve --node spark-2
    """
    found = machines_of(session.deployment(), names, node)
    for error in found.lost.values():
        progress(str(error), always=True)
    places_with_logs = [deployment for deployment in found.found if deployment.containers(names, all=True)]
    if not places_with_logs and not found.lost:
        profile = session.profile()
        raise NotFoundError(
            f"no containers for {_described(profile, names)}",
            hint=" ".join(["envgen up", profile.chosen, *names]),
        )
    alone = len(names) == 1
    given = {
        "--no-log-prefix": alone, "--timestamps": timestamps or not alone, "--follow": follow,
        f"--tail={tail}": tail is not None, f"--since={since}": since is not None,
    }  # fmt: skip
    words = ["--profile", "*", "logs", *(word for word, wanted in given.items() if wanted)]
    code = show_logs({deployment.node: deployment.compose for deployment in places_with_logs}, *words, *names)
    return code or (ExitCode.ENGINE if found.lost else ExitCode.OK)


@click.command()
@click.argument("names", metavar="SERVICE...", nargs=-1, required=True)
@reporting
@timeout_option
def restart(session: Session, names: tuple[str, ...], timeout: int | None) -> int:
    """Restart the container of each SERVICE, running or stopped, and wait until it answers.

    A running server loads recompiled kernels only after a restart.

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
    """Run a command in the running container of SERVICE.

    Options of envgen come before SERVICE. The exit code is that of the command. A service with `cluster` runs it on the
    first machine, unless --node names another.

    \b
    Examples:
      envgen exec dev python3 -c 'import flashinfer; print(flashinfer.__file__)'
      envgen exec -u 65534 -w /tmp -e LEVEL=2 dev env
    """
    return _attach(session, service, node, command_of(argv), inside, tty)


@click.command()
@click.argument("service", required=False)
@project_options
@inside_options
@node_option
def shell(session: Session, service: str | None, inside: list[str], tty: bool, node: str | None) -> int:
    """Open a shell in the running container of SERVICE (default: dev, or the first one).

    \b
    Example:
      envgen shell serve
    """
    profile = session.profile()
    words = ["sh", "-c", "if command -v bash >/dev/null; then exec bash; else exec sh; fi"]
    return _attach(session, service or use_case.main_service(profile), node, words, inside, tty)


def _attach(
    session: Session, service: str, node: str | None, argv: Sequence[str], inside: Sequence[str], tty: bool
) -> int:
    deployment = machine_of(session.deployment(), service, node)
    container = deployment.running(service)
    return attach(deployment.compose.endpoint, container.id, with_start_up(argv), options=inside, tty=tty)
