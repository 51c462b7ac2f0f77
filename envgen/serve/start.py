"""A start of one service on one machine: a list of steps, each with its clean-up beside it.

    Start(service, failed).run((PREPARE, CREATE, INSTALL, WAIT))

A step raises StartFailure, or an error of ours. Then the error gets its crash bundle, the steps
that were taken clean up, and it is raised.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial

from envgen import files
from envgen.deployment import LiveService
from envgen.engine.values import Container
from envgen.errors import EngineError, EnvgenError, ProcessError, RefusedError, ServiceError
from envgen.explain import Explanation
from envgen.profile.service import Ready, Service
from envgen.serve import preflight
from envgen.serve.ended import StartFailure, log_text, with_profile_named
from envgen.serve.notices import notices
from envgen.serve.readiness import Readiness
from envgen.serve.wait import ReadyResult, Waiter
from envgen.text import Verbosity, progress

Say = Callable[[str], None]
CREATING = 600  # seconds; a container is created and started within two
INSTALLING = 6 * 3600  # seconds; a source may be compiled


@dataclass(frozen=True)
class StartResult:
    """A running service. ``awaited``: how it became ready; the default without waiting.

    ``notices``: what its log admits, although it is ready.
    """

    container: Container
    seconds: float
    url: str
    already: bool
    awaited: ReadyResult = field(default_factory=lambda: ReadyResult(Readiness(True)))
    notices: tuple[Explanation, ...] = ()


@dataclass(frozen=True)
class Step:
    """``clean_up``: what is undone when this step or a later one fails."""

    take: Callable[[Start], None]
    clean_up: Callable[[Start], None] = lambda _start: None


@dataclass
class Start:
    """What the steps of a start need and learn.

    ``failed``: makes the error for a failure, before anything is cleaned up. ``prepare``: makes
    folders and volumes ready. ``running``: the container that it has, for steps that make none.
    """

    service: LiveService
    failed: Callable[[StartFailure], EnvgenError]
    say: Say = progress
    recreate: bool = False  # make a new container, whatever the old one is like
    timeout: float | None = None  # seconds; None: as long as the profile says
    prepare: Callable[[], None] | None = None
    running: Container | None = None
    # What the steps learn.
    container: Container | None = None
    before: tuple[str, ...] | None = None  # the IDs of the containers that it had
    already: bool = False  # the container ran before
    awaited: ReadyResult = field(default_factory=lambda: ReadyResult(Readiness(True)))
    began: float = field(default_factory=time.monotonic)
    _alone: ExitStack = field(default_factory=ExitStack)

    def run(self, steps: Sequence[Step]) -> StartResult:
        """Take the steps. On Ctrl-C, a container that exists keeps starting."""
        taken = []
        try:
            for step in steps:
                taken.append(step)
                step.take(self)
            return self.result()
        except StartFailure as failure:
            error = self.failed(self._unless_replaced(failure))
            self._clean_up(taken)
            raise error from None
        except ProcessError as problem:
            self._clean_up(taken)
            raise ServiceError(f"{self.service.name} was not started: {problem}") from None
        except (ServiceError, RefusedError):
            self._clean_up(taken)
            raise
        except KeyboardInterrupt:
            if self.container is None:
                self._clean_up(taken)
            raise
        finally:
            self.let_others()

    def _clean_up(self, taken: Sequence[Step]) -> None:
        with suppress(EngineError):
            for step in reversed(taken):
                step.clean_up(self)

    def alone(self) -> None:
        """Wait until no other process starts a service of the profile: Compose would use a
        container that another start is still creating.
        """
        root = self.service.deployment.root
        name = self.service.profile.name

        def wait() -> None:
            what = f"another envgen is starting a service of profile {name}"
            self.say(f"  {what}: waiting for it (`lslocks` shows it)")

        lock = files.state_dir(root, "state") / f"up-{name}.lock"
        self._alone.enter_context(files.locked(lock, within=root, on_wait=wait))

    def let_others(self) -> None:
        """End ``alone``."""
        self._alone.close()

    def result(self) -> StartResult:
        """The service as it is now that it is ready."""
        assert self.container is not None
        container = self.awaited.container or self.container
        awaited = self.awaited
        if self.already:  # its phases were over: we measured how long it took to read its log
            awaited = replace(awaited, phases={})
        seconds = time.monotonic() - self.began
        admitted: tuple[Explanation, ...] = ()
        with suppress(EngineError):
            admitted = notices(self.service.engine, container)
        return StartResult(container, seconds, self.service.url, self.already, awaited, admitted)

    def _unless_replaced(self, failure: StartFailure) -> StartFailure:
        """``failure``, or that another container has taken the place of ours.

        Compose creates the new one before it stops the old one, so a container that was stopped may
        still be there.
        """
        if self.container is None or (failure.container and failure.container.running):
            return failure
        for one in self.service.containers(all=True):
            if one.id != self.container.id:
                reason = "its container was replaced while it started; the new one"
                reason += f" ({one.state}) is left as it is"
                hint = self.service.profile.hint("ps")
                return replace(failure, reason=reason, container=None, says_all=True, hint=hint)
        return failure

    def note(self, line: str, lines: list[str]) -> None:
        """Keep a line of another program; it is shown with --verbose, and at a failure."""
        if line.strip():
            lines.append(log_text(line.strip()))
            if Verbosity.on or "level=warning" in line:
                self.say(f"  {lines[-1]}")


# Prepare


def _prepare(start: Start) -> None:
    if start.prepare is not None:
        start.prepare()


# Create


def _create(start: Start) -> None:
    """Create or update the container."""
    start.alone()
    deployment = start.service.deployment
    name = start.service.name
    there = deployment.engine.containers(deployment.profile.compose_name, all=True)
    deployment.require_name(there)  # a question may have taken hours
    existing = [one for one in there if one.service == name and not one.one_off]
    start.before = tuple(one.id for one in existing)
    running = [one.id for one in existing if one.active]
    if preflight.is_development(start.service.profile) and not start.service.described.interactive:
        # A server needs its sources when it starts; a shell service can get them while it runs.
        install(start, *(["exec", "-T"] if running else ["run", "--rm", "--no-deps", "-T"]))
    container = compose_up(start)
    start.already = container.id in running
    start.container = container
    start.let_others()


def compose_up(start: Start) -> Container:
    """The container as Compose made or kept it."""
    service = start.service
    lines = list[str]()
    how = ["up", "--detach", "--no-build", "--pull", "never"]
    if start.recreate:
        how.append("--force-recreate")
    compose = service.deployment.compose
    note = partial(start.note, lines=lines)
    code = compose.stream(*how, service.name, on_line=note, timeout=CREATING).code
    containers = service.containers(all=True)
    if code:
        # Created but not started (a port, a runtime, a missing program): Compose's output is the
        # log.
        reason = f"docker compose ended with {code}"
        made = containers[0] if containers else None
        raise StartFailure(reason, made, lines=tuple(lines))
    if not containers:
        raise ServiceError(f"{service.name} was started, but its container is already gone")
    return containers[0]


def _remove_created(start: Start) -> None:
    """Remove the container that this start created, and the networks of a profile that has none
    left. One that has taken its place stays.
    """
    service = start.service
    engine = start.service.engine
    container = start.container
    if start.before is None:
        return
    if container is None:
        made = [one.id for one in service.containers(all=True) if one.id not in start.before]
    elif container.id in start.before:
        return
    else:
        start.alone()
        made = [container.id]
    for container_id in made:
        if engine.stop_and_remove(container_id):
            start.say(f"  {service.name}: removed the partly started container")
    project = service.profile.compose_name
    if not engine.containers(project, all=True):
        engine.remove_networks(project)


def _keep(start: Start) -> None:
    """It runs as the profile says: Compose would find nothing to do, and takes its time for it."""
    start.container = start.running
    start.already = True


def _stop(start: Start) -> None:
    """Stop the container that runs, so that the next step starts it again."""
    if start.running is not None:
        start.say(f"  stopping {start.running.name}")
        start.service.deployment.by_name.run("stop", start.service.name)


# Install mounted sources


def _install(start: Start) -> None:
    """Install mounted sources in the container of a shell service; a server got them before."""
    service = start.service
    if preflight.is_development(service.profile) and service.described.interactive:
        install(start, "exec", "-T")


def install(start: Start, *how: str) -> None:
    """Install mounted sources that are not installed yet, with the command in the image."""
    service = start.service
    lines = []

    def note(line: str) -> None:
        if line.strip():
            lines.append(log_text(line.strip()))
            start.say(f"  {lines[-1]}")

    compose = service.deployment.compose
    words = (*how, service.name, "envgen-install")
    done = compose.stream(*words, on_line=note, timeout=INSTALLING)
    if not done.code:
        return
    from envgen.explain.read import cause_of

    # All lines were printed. The last one says what failed; but on a full disk anything may fail.
    what = f"the mounted sources could not be installed (exit code {done.code})"
    cause = cause_of(lines)
    if cause and cause.rule in ("no_space", "undeclared_dependency"):
        hint = with_profile_named(cause.cure, service.profile, service.name)
        raise ServiceError(f"{what}: {cause.cause}", hint=hint)
    if lines:
        what += f": {lines[-1].removeprefix('envgen: ')}"
    shell = f"envgen run {service.profile.chosen_variant} {service.name} sh"
    raise ServiceError(what, hint=f"to look closer: {shell}")


# Wait


def _wait(start: Start) -> None:
    assert start.container is not None
    start.awaited = wait(start, start.container.id)


def wait(start: Start, container_id: str) -> ReadyResult:
    """Wait until it is ready; StartFailure otherwise. The time-out starts after the installation
    of sources.
    """
    service = start.service
    waiter = Waiter(
        service.engine,
        service.name,
        service.described,
        service.reachable_url(),
        start.say,
        service.api_key,
        service.deployment.reconnected,
    )
    seconds = patience(service.described) if start.timeout is None else start.timeout
    return waiter.wait(container_id, time.monotonic() + seconds, already=start.already)


def patience(service: Service) -> float:
    """The seconds that a service has to become ready, if nobody says otherwise."""
    health = service.health
    if service.ready or (health is None and service.http_port):
        return float((service.ready or Ready()).timeout.seconds)
    if health is None:
        return 60.0
    return 60.0 + health.start_period.seconds + health.interval.seconds * health.retries


PREPARE = Step(_prepare)
CREATE = Step(_create, _remove_created)
KEEP = Step(_keep)
STOP = Step(_stop)
INSTALL = Step(_install)
WAIT = Step(_wait)
