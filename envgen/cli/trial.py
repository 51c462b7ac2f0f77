"""What `smoke`, `stress`, `bench` and `accept` share: options, the server to ask, the record, and how it all ends."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from envgen.app.session import Session
from envgen.cli.common import LARGEST, json_option, print_json, project_options, variant_option
from envgen.errors import ExitCode
from envgen.extras import require
from envgen.text import progress

if TYPE_CHECKING:
    from envgen.engine.base import Container, Engine
    from envgen.errors import EnvgenError
    from envgen.profile.model import Profile
    from envgen.serve.trial import Criterion, Trial

F = TypeVar("F", bound=Callable[..., Any])
KILLED = 137  # the exit code of a program that got SIGKILL
LIKELY = ("serve", "server", "vllm")  # names of a service, in this order, where none is named


@dataclass(frozen=True)
class Asked:
    """The options that every one of these verbs has."""

    session: Session
    service: str | None
    url: str | None
    model: str | None
    container: str | None
    key_variable: str | None
    wait: int
    timeout: int
    seed: int | None
    results: Path | None
    as_json: bool


def trial_options(function: F) -> F:
    """Add them; the command receives one ``asked``."""
    options = [
        click.argument("service", required=False),
        click.option("--url", metavar="URL", help="Ask this server instead of the profile's own service."),
        click.option("--model", metavar="NAME", help="The model to ask for (default: the only one that it has)."),
        click.option("--container", metavar="NAME", help="With --url: the container whose memory is watched."),
        click.option("--api-key-env", "key_variable", metavar="NAME", help="The variable that holds the API key."),
        click.option("--wait", type=click.IntRange(0, LARGEST), default=30, show_default=True, metavar="SECONDS",
                     help="How long a server that is not ready is asked again."),
        click.option("--timeout", type=click.IntRange(1, LARGEST), default=300, show_default=True, metavar="SECONDS",
                     help="Silence after which a request has failed."),
        click.option("--seed", type=int, help="Makes the same prompts again (a prefix cache may then answer them)."),
        click.option("--results", type=click.Path(path_type=Path, file_okay=False), metavar="FOLDER",
                     help="Where the record is written (default: results/ beside the project file)."),
        variant_option,
        json_option,
    ]  # fmt: skip

    @functools.wraps(function)
    def wrapper(*args: Any, session: Session, service: str | None, url: str | None, model: str | None,
                container: str | None, key_variable: str | None, wait: int, timeout: int, seed: int | None,
                results: Path | None, variant: str, as_json: bool, **rest: Any) -> Any:  # fmt: skip
        require("bench")
        session.variant = variant
        asked = Asked(session, service, url, model, container, key_variable, wait, timeout, seed, results, as_json)
        return function(*args, asked=asked, **rest)

    found: Any = wrapper
    for option in reversed(options):
        found = option(found)
    return project_options(found)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Server:
    """The server to ask, and what is known around it. ``container`` is None where none is known."""

    url: str
    model: str | None
    profile: Profile | None
    root: Path | None
    service: str
    engine: Engine | None
    container: Container | None


def server_of(asked: Asked) -> Server:
    """The profile's running service, or the one that --url names. UsageError, NotFoundError when there is none."""
    from envgen.errors import NotFoundError, UsageError

    if asked.url is None:
        if asked.container:
            raise UsageError("--container belongs to --url", hint="without --url the profile's own service is watched")
        return _own_service(asked)
    if asked.service:
        raise UsageError("name a service or a --url, not both")
    engine = container = None
    if asked.container:
        from envgen.engine.docker import connect

        engine = connect()
        container = engine.container(asked.container)
        if container is None or not container.running:
            raise NotFoundError(f"there is no running container {asked.container}", hint="`docker ps` shows them")
    return Server(asked.url, asked.model, None, None, "", engine, container)


def _own_service(asked: Asked) -> Server:
    from envgen.app.services import known_service
    from envgen.engine.docker import connect
    from envgen.engine.endpoint import find_endpoint
    from envgen.errors import NotFoundError, UsageError
    from envgen.serve.where import reachable_url

    root, profile = asked.session.loaded().project.root, asked.session.profile()
    if asked.service:
        known_service(profile, asked.service)
    with_ports = [name for name, one in profile.services.items() if one.ports]
    likely = [name for name in LIKELY if name in with_ports]
    name = asked.service or next(iter(likely or with_ports), "")
    if not name:
        raise UsageError(f"no service of profile {profile.name} publishes a port", hint="or ask any server: --url URL")
    service = profile.services[name]
    url = reachable_url(service, find_endpoint())
    if not url:
        raise UsageError(f"service {name} publishes no port", hint="add one to its `ports`")
    engine = connect()
    running = engine.containers(profile.compose_name, name)
    if not running:
        raise NotFoundError(f"{name} is not running", hint=f"envgen up {name} --profile {profile.name}")
    model = asked.model or (service.ready.model if service.ready else None)
    return Server(url, model, profile, root, name, engine, running[0])


def run(
    asked: Asked, kind: str, parameters: Mapping[str, Any], work: Callable[[Server, Trial], tuple[str, dict[str, Any]]]
) -> tuple[str, dict[str, Any], Path]:
    """Find the server, open a record, do the ``work`` and close the record with its outcome.

    ``work`` returns the outcome and the summary. Returns both and the record's path. Ctrl-C leaves the record as it is
    (interrupted) and the service running; when the server goes away, the record says so and ServiceError tells why.
    """
    from envgen import errors
    from envgen.engine.process import terminable
    from envgen.results import store
    from envgen.serve import facts, vitals
    from envgen.serve.prompts import prompts_for
    from envgen.serve.target import find
    from envgen.serve.trial import Gone, Trial

    server = server_of(asked)
    target = find(server.url, model=server.model, key=_key(asked), wait=asked.wait, silence=asked.timeout, say=progress)
    for note in target.notes:
        progress(f"  note: {note}")
    environment = facts.collect(
        url=target.url, model=target.model, engine=server.engine, container=server.container, profile=server.profile,
        root=server.root, service=server.service,
    )  # fmt: skip
    seed = asked.seed if asked.seed is not None else time.time_ns() % 1_000_000_007
    told = {**parameters, "seed": seed, "api": target.api, "max_len": target.max_len, "notes": list(target.notes)}
    watched = alive = None
    if server.engine is not None and server.container is not None:
        watched = functools.partial(vitals.look, server.engine, server.container.id)
        alive = functools.partial(vitals.alive, server.engine, server.container)
    folder = asked.results or (server.root or Path.cwd()) / "results"
    with terminable(), store.start(folder, kind, environment, told) as record:
        prompts = prompts_for(target, seed, asked.timeout)
        trial = Trial(target, prompts, record.sample, progress, watched, alive, asked.timeout, seed)
        try:
            outcome, summary = work(server, trial)
        except KeyboardInterrupt:
            progress(f"\ninterrupted; the samples so far are kept in {record.path}; the server goes on running")
            raise
        except Gone as error:
            record.end("server gone", {"requests": trial.sent, "error": str(error)})
            raise _gone(error, server, record.path) from None
        except errors.EnvgenError as error:
            record.end("error", {"requests": trial.sent, "error": str(error)})
            raise
        record.end(outcome, summary)
    return outcome, summary, record.path


def _key(asked: Asked) -> str:
    from envgen.errors import UsageError

    if asked.key_variable is None:
        return ""
    key = os.environ.get(asked.key_variable, "")
    if not key:
        raise UsageError(f"--api-key-env {asked.key_variable}: there is no such variable, or it is empty")
    return key


def _gone(error: EnvgenError, server: Server, path: Path) -> EnvgenError:
    """Why it stopped answering, as far as its container tells."""
    from envgen.errors import ServiceError
    from envgen.explain import cause_of
    from envgen.serve.end import last_words

    kept = f"the samples so far are kept in {path}"
    if server.engine is None or server.container is None:
        return ServiceError(f"{error}; {kept}")
    words = last_words(server.engine, server.container.id)
    code = words.container.exit_code if words.container else 0
    oom_killed = words.container is not None and words.container.oom_killed
    if code == KILLED and not oom_killed:
        code = 0  # it tells that somebody killed it, not who: no cause is read out of it
    cause = cause_of(words.lines, exit_code=code or None, service=True, oom_killed=oom_killed)
    told = "".join(f"\n    {line}" for line in words.lines)
    bundle = _bundle(server, str(error), cause.summary if cause else "")
    return ServiceError(
        f"{error}\n  {words.told}; its last lines:{told}"
        + (f"\n  cause: {cause.summary}" if cause else "")
        + (f"\n  what it left behind: {bundle}" if bundle else "")
        + f"\n  {kept}",
        hint=cause.cure if cause else f"envgen up {server.service or 'SERVICE'} starts it again",
    )


def _bundle(server: Server, reason: str, cause: str) -> str:
    """The crash bundle's path; empty where the server is no service of a profile, or it could not be written."""
    from envgen.app import crash

    if server.profile is None or server.root is None or server.engine is None or server.container is None:
        return ""
    file = server.root / server.profile.compose_file
    return crash.write(
        server.engine, server.profile, server.root, server.service, server.container.id,
        {"reason": reason, "cause": cause}, [file] if file.is_file() else [],
    )  # fmt: skip


def show_criteria(criteria: Sequence[tuple[str, Criterion]]) -> None:
    """Print a verdict as lines."""
    marks = {"passed": "ok  ", "failed": "FAIL", "not checked": "?   "}
    for part, one in criteria:
        head = f"{part}: {one.name}" if part else one.name
        click.echo(f"  {marks[one.verdict]}  {head}: {one.seen}")
        if one.verdict != "passed":
            click.echo(f"        wanted: {one.wanted}")
        if one.note:
            click.echo(f"        {one.note}")


def finish(asked: Asked, outcome: str, document: Mapping[str, Any], path: Path) -> int:
    """Print what ends every one of these verbs; the exit code."""
    if asked.as_json:
        print_json({"outcome": outcome, "record": str(path), **document})
    else:
        click.echo(f"{outcome}; the record is {path}")
    return ExitCode.OK if outcome == "passed" else ExitCode.FINDINGS
