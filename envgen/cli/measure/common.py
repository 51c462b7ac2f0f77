"""What `smoke`, `stress`, `bench` and `accept` share: options, the server, the record, and how it all ends."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

from envgen.app import crash
from envgen.app.places import known_service
from envgen.app.session import Session
from envgen.bench import facts, record, vitals
from envgen.bench.checks import Criterion, Gone, Trial
from envgen.bench.client import Prompts, find
from envgen.bench.record import Run
from envgen.bench.tools import Place
from envgen.cli.common import LARGEST, json_option, print_json, project_options, variant_option
from envgen.engine.base import Container, Engine
from envgen.engine.docker import connect
from envgen.engine.endpoint import find_endpoint
from envgen.engine.process import terminable
from envgen.engine.whose import ours
from envgen.errors import EngineError, EnvgenError, ExitCode, NotFoundError, ServiceError, UsageError
from envgen.explain import cause_of
from envgen.extras import require
from envgen.inside import run
from envgen.profile.model import Profile
from envgen.serve.launch import reachable_url, service_url
from envgen.serve.log import last_words
from envgen.serve.preflight import with_ports
from envgen.text import progress

F = TypeVar("F", bound=Callable[..., Any])
LIKELY = ("serve", "server", "vllm")  # names of a service, in this order, where none is named
KILLED = 137  # the exit code of a program that got SIGKILL
MARKS = {"passed": "ok  ", "failed": "FAIL", "not checked": "?   "}


@dataclass(frozen=True)
class Asked:
    """The options that each of these verbs has."""

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


def server_options(function: F) -> F:
    """Add them; the command receives one ``asked``."""
    options = [
        click.argument("service", required=False),
        click.option("--url", metavar="URL", help="Ask this server instead of the profile's own service."),
        click.option("--model", metavar="NAME", help="The model to ask for (default: the only one that it has)."),
        click.option("--container", metavar="NAME", help="With --url: the server's container."),
        click.option("--api-key-env", "key_variable", metavar="NAME", help="The variable that holds the API key."),
        click.option("--wait", type=click.IntRange(0, LARGEST), default=30, show_default=True, metavar="SECONDS",
                     help="How long a server that is not ready is asked again."),
        click.option("--timeout", type=click.IntRange(1, LARGEST), default=300, show_default=True, metavar="SECONDS",
                     help="Silence after which a request, or a tool, has failed."),
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
    profile: Profile | None = None
    root: Path | None = None
    service: str = ""
    engine: Engine | None = None
    container: Container | None = None

    def place(self, target_root: str, tokenizer: str | None, image: str | None, throwaway: bool) -> Place:
        """Where a tool runs: the server's container, or a throw-away one of its image (or of ``image``).

        The throw-away one shares the server's network and mounts; beside a server without a container it has the
        network of the machine that the engine runs on.
        """

        folder = tokenizer or target_root
        if not folder:
            raise UsageError("the server doesn't say where its model is", hint="name its folder: --tokenizer PATH")
        container = self.container
        if container is None and not image:
            hint = "name its container, or an image to run the tool in: --container NAME or --image NAME"
            raise UsageError("the tool runs in a container, and none of this server is known", hint=hint)
        engine = self.engine or connect()
        if container is None:
            assert image
            execute = run.in_image(engine, image, network="host")
            return Place(execute, self.url, folder, where=f"image {image}")
        url = f"http://127.0.0.1:{self._inner_port(container)}"
        if not throwaway and not image:
            return Place(run.in_container(engine, container.id), url, folder, where="the image of the service")
        execute = run.in_image(
            engine, image or container.image_id, mounts=container.mounts, env=container.env, user=container.user,
            network=f"container:{container.id}",
        )  # fmt: skip
        return Place(execute, url, folder, where=f"image {image or container.image_id[:19]}")

    def _inner_port(self, container: Container) -> int:
        outer = urlsplit(self.url).port
        found = next((port.container for port in container.ports if port.host == outer), None)
        if found is None and self.profile is None:
            raise UsageError(f"container {container.name} does not publish port {outer}", hint="docker ps")
        ready = self.profile.services[self.service].ready if self.profile else None
        return found or (ready.port if ready and ready.port else outer or 80)


def server_of(asked: Asked) -> Server:
    """The profile's running service, or the one that --url names. UsageError, NotFoundError when there is none."""
    if asked.url is None:
        if asked.container:
            raise UsageError("--container belongs to --url", hint="without --url the profile's own service is watched")
        return _own_service(asked)
    if asked.service:
        raise UsageError("name a service or a --url, not both")
    engine = container = None
    if asked.container:
        engine = connect()
        container = engine.container(asked.container)
        if container is None or not container.running:
            raise NotFoundError(f"there is no running container {asked.container}", hint="`docker ps` shows them")
    return Server(asked.url.rstrip("/"), asked.model, engine=engine, container=container)


def running(asked: Asked) -> Server:
    """A running container, whether it serves or not: the service's, that of --container, else the profile's first."""
    if asked.container:
        return server_of(replace(asked, url=asked.url or "http://127.0.0.1"))
    root, profile = asked.session.loaded().project.root, asked.session.profile()
    if asked.service:
        known_service(profile, asked.service)
    engine = connect()
    names = [asked.service] if asked.service else [*LIKELY, *profile.services]
    for name in dict.fromkeys(names):
        if name in profile.services and (found := ours(engine.containers(profile.compose_name, name), root)):
            return Server("", None, profile, root, name, engine, found[0])
    start = f"envgen up {asked.service or next(iter(profile.services), '')} --profile {profile.name}".replace("  ", " ")
    raise NotFoundError(f"no container of profile {profile.name} runs", hint=start)


def _own_service(asked: Asked) -> Server:

    root, profile = asked.session.loaded().project.root, asked.session.profile()
    if asked.service:
        known_service(profile, asked.service)
    publish = [name for name, one in profile.services.items() if one.host_ports]
    likely = [name for name in LIKELY if name in publish]
    name = asked.service or next(iter(likely or publish), "")
    if not name:
        raise UsageError(f"no service of profile {profile.name} publishes a port", hint="or ask any server: --url URL")
    service = profile.services[name]
    if not service_url(service, ""):
        raise UsageError(f"service {name} publishes no port", hint="add one to its `ports`")
    engine = connect()
    running = ours(engine.containers(profile.compose_name, name), root)
    service = with_ports(profile, running).services[name]
    if not running:
        raise NotFoundError(f"{name} is not running", hint=f"envgen up {name} --profile {profile.name}")
    model = asked.model or (service.ready.model if service.ready else None)
    url = reachable_url(service, find_endpoint())
    return Server(url, model, profile, root, name, engine, running[0])


Work = Callable[[Server, Trial, Run], tuple[str, dict[str, Any]]]


def measure(asked: Asked, kind: str, parameters: Mapping[str, Any], work: Work) -> tuple[str, dict[str, Any], Path]:
    """Find the server, open a record, do the ``work`` and close the record with its outcome and summary.

    Ctrl-C leaves the record as it is (interrupted) and the service running; when the server goes away, the record has
    that, and ServiceError has the reason.
    """
    server = server_of(asked)
    target = find(
        server.url, model=server.model, key=_key(asked), wait=asked.wait, silence=asked.timeout, say=progress
    )  # fmt: skip
    for note in target.notes:
        progress(f"  note: {note}")
    environment = facts.collect(
        url=target.url, model=target.model, engine=server.engine, container=server.container, profile=server.profile,
        root=server.root, service=server.service,
    )  # fmt: skip
    seed = asked.seed if asked.seed is not None else time.time_ns() % 1_000_000_007
    told = {**parameters, "seed": seed, "max_len": target.max_len, "notes": list(target.notes)}
    look = alive = None
    if server.engine is not None and server.container is not None:
        look = functools.partial(vitals.look, server.engine, server.container.id)
        alive = functools.partial(vitals.alive, server.engine, server.container)
    folder = asked.results or (server.root or Path.cwd()) / "results"
    with terminable(), record.start(folder, kind, environment, told) as run:
        trial = Trial(
            target, Prompts(target, seed), run.sample, progress, look, alive, environment,
        )  # fmt: skip
        try:
            outcome, summary = work(server, trial, run)
        except KeyboardInterrupt:
            progress(f"\ninterrupted; what was measured is kept in {run.path}; the server keeps running")
            raise
        except EnvgenError as error:
            lost = isinstance(error, (EngineError, ServiceError)) and alive is not None and not alive()
            gone = isinstance(error, Gone) or lost
            run.end("server gone" if gone else "error", {"error": str(error), "samples": run.samples})
            kept = f"what was measured is kept in {run.path}" if run.samples else ""
            if gone:
                raise _gone(error, server, kept) from None
            if kept and isinstance(error, ServiceError):
                raise ServiceError(f"{error}\n  {kept}", hint=error.problems[0].hint) from None
            raise
        run.end(outcome, summary)
    return outcome, summary, run.path


def _key(asked: Asked) -> str:
    if asked.key_variable is None:
        return ""
    key = os.environ.get(asked.key_variable, "")
    if not key:
        raise UsageError(f"--api-key-env {asked.key_variable}: there is no such variable, or it is empty")
    return key


def _gone(error: EnvgenError, server: Server, kept: str) -> EnvgenError:
    """Why it stopped answering, as far as its container shows."""
    if server.engine is None or server.container is None:
        return ServiceError(f"{error}; {kept}")
    words = last_words(server.engine, server.container.id)
    code = words.container.exit_code if words.container else 0
    oom_killed = words.container is not None and words.container.oom_killed
    if code == KILLED and not oom_killed:
        code = 0  # it shows that it was killed, not by whom: no cause is read out of it
    cause = cause_of(words.lines, exit_code=code or None, service=True, oom_killed=oom_killed)
    bundle = ""
    if server.profile is not None and server.root is not None:
        file = server.root / server.profile.compose_file
        bundle = crash.write(
            server.engine, server.profile, server.root, server.service, server.container.id,
            {"reason": str(error), "cause": cause.summary if cause else ""}, [file] if file.is_file() else [],
        )  # fmt: skip
    lines = [f"{error}", f"  {words.told}; its last lines:", *(f"    {line}" for line in words.lines)]
    lines += [f"  cause: {cause.summary}"] if cause else []
    lines += [f"  what it left behind: {bundle}"] if bundle else []
    hint = cause.cure if cause else f"envgen up {server.service or 'SERVICE'} starts it again"
    return ServiceError("\n".join([*lines, f"  {kept}"] if kept else lines), hint=hint)


def show_criteria(criteria: list[Criterion]) -> None:
    """Print a verdict as lines."""
    for one in criteria:
        head = f"{one.part}: {one.name}" if one.part else one.name
        click.echo(f"  {MARKS[one.verdict]}  {head}: {one.seen}")
        if one.verdict != "passed":
            click.echo(f"        wanted: {one.wanted}")
        if one.note:
            click.echo(f"        {one.note}")


def finish(asked: Asked, outcome: str, document: Mapping[str, Any], path: Path) -> int:
    """Print what ends each of these verbs; the exit code."""
    if asked.as_json:
        print_json({"outcome": outcome, "record": str(path), **document})
    else:
        click.echo(f"{outcome}; the record is {path}")
    return ExitCode.OK if outcome == "passed" else ExitCode.FINDINGS
