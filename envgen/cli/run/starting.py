"""What `up`, `start` and `restart` do and print. They import it when they run: `--help` needs none
of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from envgen.app import lifecycle
from envgen.app.session import Session
from envgen.app.start import Checked, StartOptions
from envgen.app.stay import notify_ready
from envgen.app.up import check_all, start_all
from envgen.bench.trace import proof
from envgen.binding import JsonDict
from envgen.cli.common import answer, ask, can_ask, wants_json, warn_of_unused
from envgen.deployment import LiveService
from envgen.engine.values import Container
from envgen.errors import EnvgenError, Problem, RefusedError
from envgen.live import moving
from envgen.profile.exposure import is_local, open_ports
from envgen.profile.service import Service
from envgen.serve.notices import in_words
from envgen.serve.preflight import PreflightError
from envgen.serve.start import StartResult
from envgen.text import progress

if TYPE_CHECKING:
    from envgen.app.provision import MissingInputs


def up(
    session: Session,
    names: Sequence[str],
    options: StartOptions,
    *,
    yes: bool,
    build_first: bool,
    predict: bool,
    stay: bool,
) -> int:
    """Check, make what is missing, start and wait; print each service when it is ready."""
    warn_of_unused(session)
    deployment = session.deployment()
    own = deployment.of_profile(names)
    beside = [name for name in names or deployment.beside if name not in own]
    if names and not own:
        lifecycle.start_beside(deployment, beside)
        return answer([])
    names = own
    checked, options = _checked(
        session, names, options, yes=yes, build=build_first, predict=predict
    )
    documents = []
    try:
        with moving("starting"):
            for passed, started in start_all(checked, ask, options):
                service = passed.service
                if options.wait and not started.already and service.described.cluster is None:
                    from envgen.app.provision import record_sources  # not where nothing is done

                    record_sources(service.deployment, started.seconds)
                documents.append(started_document(service, started, waited=options.wait))
                if not wants_json():
                    print_started(service, started, waited=options.wait)
    except EnvgenError as error:
        error.details = {"started": documents}
        raise
    if beside:
        lifecycle.start_beside(deployment, beside)
    answer(documents[0] if len(names) == 1 else documents)
    if stay:
        notify_ready(f"{names[0]} is {'running' if started.awaited.answer.unasked else 'ready'}")
        checked[0].stay(started.container)
    return 0


def _checked(
    session: Session,
    names: Sequence[str],
    options: StartOptions,
    *,
    yes: bool,
    build: bool,
    predict: bool,
) -> tuple[tuple[Checked, ...], StartOptions]:
    """The services, checked, and the options of their start. What is missing (with ``build``: the
    image, if it is out of date) is made first, after one question. PreflightError otherwise, before
    anything is made.
    """
    with moving("checking"):
        deployment = session.deployment()
        refused = None
        try:
            checked = check_all(deployment, names, predict=predict and not build)
        except PreflightError as error:
            if not error.only_lacking:
                raise
            refused = error
        if not refused and not build:
            return checked, options
        from envgen.app import provision
        from envgen.app.upgrade.trial import ask_before_build
        from envgen.cli.build.build import provide

        lacking = provision.look(deployment, names, build=build)
    if refused and not lacking:
        raise refused
    if not options.recreate:
        options = replace(options, agreed=lacking.replaces)
    if options.agreed or not yes:
        _agree(lacking, names, options, refused, build=build)
    elif lacking.lock or lacking.downloads or not build:
        progress("\n".join(["missing, and made now:", *lacking.lines()]))
    provide(session, lacking, lambda: ask_before_build(session, names) if predict else None)
    with moving("checking"):
        return check_all(session.deployment(), names, predict=predict), options


def _agree(
    lacking: MissingInputs,
    names: Sequence[str],
    options: StartOptions,
    refused: PreflightError | None,
    *,
    build: bool,
) -> None:
    """Ask once for all that is made and replaced; a build alone was asked for. RefusedError without
    a yes.
    """
    if build and not (lacking.lock or lacking.downloads or options.agreed):
        return
    lines = ["missing, and `up` can make it:", *lacking.lines()]
    words = [*names, *(["--build"] if build else []), "--yes"]
    if options.agreed:
        lines.append(f"  replace   {', '.join(options.agreed)}: running now, with the old image")
        words.append("--recreate")
    command = lacking.deployment.profile.hint("up", *words)
    if can_ask():
        if not ask("\n".join([*lines, "Do this now?"])):
            raise RefusedError("nothing was done", hint=command)
        return
    reasons = [replace(problem, hint="") for problem in refused.problems] if refused else []
    raise RefusedError(problems=(*reasons, Problem("\n".join(lines), hint=command)))


def reachable(service: Service, container: Container) -> list[int]:
    """The ports of the machine that a container has open to the network; Docker lists none of the
    host's network.
    """
    if service.network is not None:
        return list(open_ports(service))
    return sorted({port.host for port in container.ports if not is_local(port.address)})


def started_document(service: LiveService, started: StartResult, *, waited: bool) -> JsonDict:
    """The result of a start as JSON."""
    container = started.container
    awaited = started.awaited
    reply = awaited.answer
    chats = {}
    for name, (good, why) in reply.chats.items():
        chats[name] = {"good": good, "seen": why}
    return {
        "already_running": started.already,
        "chats": chats,
        "completion": reply.text,
        "container": container.name,
        "health": container.health,
        "asked": waited and not reply.unasked,
        "first_token_seconds": round(reply.first_token, 3),
        "id": container.id,
        "image": container.image_id,
        "log_shows": awaited.shown,
        "notices": list(map(vars, started.notices)),
        "open_ports": reachable(service.described, container),
        "phases": awaited.phases,
        "ran": [one.text for one in proof(service, container)],
        "restarts": awaited.restarts,
        "seconds": round(started.seconds, 1),
        "service": service.name,
        "state": container.state,
        "url": started.url,
        "variant": container.labels.get("dev.envgen.variant", ""),
        "waited": waited,
    }


def print_started(service: LiveService, started: StartResult, *, waited: bool = True) -> None:
    """Print the result of a start."""
    container = started.container
    answer = started.awaited.answer
    if not waited:
        click.echo(f"{service.name} was started as {container.name}; not waited for")
        return
    described = service.described
    how = "is running" if answer.unasked else "is ready"
    if started.already:
        how = "was running already" if answer.unasked else "was running already and is ready"
    line = f"{service.name} {how} after {started.seconds:.1f} s as {container.name}"
    if started.url:
        line += f", {started.url}"
    if reachable(described, container):
        line += " (reachable from the network)"
    if answer.unasked and (described.serves or described.http_port):
        line += f"; nothing was asked: {answer.unasked}"
    click.echo(line)
    for more in _details(service, started):
        click.echo(f"  {more}")


def _details(service: LiveService, started: StartResult) -> Iterator[str]:
    awaited = started.awaited
    answer = awaited.answer
    if answer.text:
        yield f"completed {awaited.prompt!r} with {answer.text!r}"
    for name, (good, why) in answer.chats.items():
        yield f"{name}: {why}" if good else f"{name}: not tried: {why}"
    for name, line in awaited.shown.items():
        yield f"{name}: {line.strip()[:160]}"
    yield from (one.text for one in proof(service, started.container))
    yield from in_words(started.notices)
    if awaited.restarts:
        logs = service.profile.hint("logs", service.name)
        yield f"Docker restarted it {awaited.restarts} times: {logs}"
    if service.described.cluster:
        yield "if a rank ends, the service stays down; `up --stay` in a systemd unit starts it again"
