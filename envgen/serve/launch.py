"""The steps of starting one service of a profile, and the reason of a failure."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from envgen import files
from envgen.deployment import Deployment
from envgen.engine.endpoint import forward
from envgen.engine.values import Container
from envgen.errors import EngineError, ServiceError
from envgen.explain import Explanation
from envgen.files import state_dir
from envgen.profile.exposure import API_KEY
from envgen.profile.model import Profile
from envgen.profile.service import Ready, Service
from envgen.profile.values import PortMapping
from envgen.serve import preflight
from envgen.serve.ended import StartFailure, in_profile, log_text
from envgen.serve.notices import notices
from envgen.serve.readiness import Readiness
from envgen.serve.wait import Awaited, Waiter
from envgen.text import Verbosity

Say = Callable[[str], None]
CREATING = 600  # seconds; a container is created and started within two
INSTALLING = 6 * 3600  # seconds; a source may be compiled


@dataclass(frozen=True)
class Started:
    """A running service. ``awaited``: how it became ready; the default without waiting.

    ``notices``: what its log admits, although it is ready.
    """

    container: Container
    seconds: float
    url: str
    already: bool
    awaited: Awaited = field(default_factory=lambda: Awaited(Readiness(True)))
    notices: tuple[Explanation, ...] = ()


def key_of(deployment: Deployment) -> str:
    """The API key of the profile's servers, from this terminal or `.env`; "" if they need none."""
    return deployment.shell.get(API_KEY, "") if API_KEY in deployment.profile.secrets else ""


@dataclass(frozen=True)
class Begun:
    """A service's container. ``began``: monotonic seconds. ``already``: it ran before. ``created``:
    by this start.
    """

    container: Container
    began: float
    already: bool
    created: bool


@dataclass
class Launcher:
    """Starts the service ``name``, step by step. ``say`` prints a line of progress.

    Each step raises StartFailure or ServiceError where it fails, and leaves what it has created.
    """

    deployment: Deployment
    name: str
    say: Say
    recreate: bool = False  # make a new container, whatever the old one is like
    began: float = field(default_factory=time.monotonic)

    @property
    def service(self) -> Service:
        return self.deployment.profile.services[self.name]

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """One start of a profile at a time: Compose would use a container that another start is
        still creating.
        """
        root, name = self.deployment.root, self.deployment.profile.name

        def wait() -> None:
            self.say(
                f"  another envgen is starting a service of profile {name}: waiting for it (`lslocks` shows it)"
            )

        return files.locked(state_dir(root, "state") / f"up-{name}.lock", within=root, on_wait=wait)

    def existing(self) -> tuple[Container, ...]:
        """The containers of the service, running or not."""
        return self.deployment.engine.containers(
            self.deployment.profile.compose_name, self.name, all=True
        )

    def create(self, before: Collection[str]) -> Begun:
        """Create or update the container. Called in ``alone``; ``before``: the IDs of those that
        exist.
        """
        running = {
            one.id
            for one in self.deployment.engine.containers(
                self.deployment.profile.compose_name, self.name
            )
        }
        if self._has_sources and not self.service.interactive:
            # A server needs its sources when it starts; a shell service can get them while it runs.
            self._install(*(("exec", "-T") if running else ("run", "--rm", "--no-deps", "-T")))
        container = self._create()[0]
        return Begun(container, self.began, container.id in running, container.id not in before)

    def install(self) -> None:
        """Install mounted sources in the container of a shell service; a server got them in
        ``create``.
        """
        if self._has_sources and self.service.interactive:
            self._install("exec", "-T")

    def started(self, begun: Begun, awaited: Awaited) -> Started:
        """The service as it is now that it is ready."""
        container = self.deployment.engine.container(begun.container.id) or begun.container
        if begun.already:  # its phases were over: we measured how long it took to read its log
            awaited = replace(awaited, phases={})
        seconds = time.monotonic() - begun.began
        admitted: tuple[Explanation, ...] = ()
        with contextlib.suppress(EngineError):
            admitted = notices(self.deployment.engine, container)
        return Started(container, seconds, self.url, begun.already, awaited, admitted)

    def remove(self, ids: Collection[str]) -> None:
        """Remove containers that were partly started, and the networks of a profile that has none
        left.
        """
        for container_id in ids:
            if self.deployment.engine.stop_and_remove(container_id):
                self.say(f"  {self.name}: removed the partly started container")
        if not self.deployment.engine.containers(self.deployment.profile.compose_name, all=True):
            self.deployment.engine.remove_networks(self.deployment.profile.compose_name)

    def unless_replaced(self, begun: Begun, failure: StartFailure) -> StartFailure:
        """``failure``, or that another container has taken the place of ``begun``.

        Compose creates the new one before it stops the old one, so a container that was stopped may
        still be there.
        """
        if failure.container is not None and failure.container.running:
            return failure
        successor = [one for one in self.existing() if one.id != begun.container.id]
        if not successor:
            return failure
        hint = f"envgen ps {self.deployment.profile.chosen}"
        reason = f"its container was replaced while it started; the new one ({successor[0].state}) is left as it is"
        return replace(failure, reason=reason, container=None, says_all=True, hint=hint)

    @property
    def _has_sources(self) -> bool:
        return preflight.is_development(self.deployment.profile)

    @property
    def url(self) -> str:
        """The service's address on the engine's machine; "" if it publishes no port."""
        return service_url(self.deployment.effective.services[self.name], self.deployment.address)

    def _create(self) -> Sequence[Container]:
        lines: list[str] = []
        how = [
            "--detach",
            "--no-build",
            "--pull",
            "never",
            *(["--force-recreate"] if self.recreate else []),
        ]
        done = self.deployment.compose.stream(
            "up", *how, self.name, on_line=lambda line: self._note(line, lines), timeout=CREATING
        )
        if done.code and preflight.network_gone(lines) and not self.recreate:
            self.say(
                f"  {self.name}: the network of its stopped container was removed; creating the container anew"
            )
            lines.clear()
            how.append("--force-recreate")
            done = self.deployment.compose.stream(
                "up",
                *how,
                self.name,
                on_line=lambda line: self._note(line, lines),
                timeout=CREATING,
            )
        containers = self.deployment.engine.containers(
            self.deployment.profile.compose_name, self.name, all=True
        )
        if done.code and (
            refused := preflight.changed_meanwhile(self.deployment, self.name, lines)
        ):
            raise refused
        if done.code:
            # Created but not started (a port, a runtime, a missing program): Compose's output is
            # the log.
            reason = f"docker compose ended with {done.code}"
            raise StartFailure(reason, containers[0] if containers else None, lines=tuple(lines))
        if not containers:
            raise ServiceError(f"{self.name} was started, but its container is already gone")
        return containers

    def _note(self, line: str, lines: list[str]) -> None:
        """Keep a line of another program; it is shown with --verbose, and at a failure."""
        if line.strip():
            lines.append(log_text(line.strip()))
            if Verbosity.on or "level=warning" in line:
                self.say(f"  {lines[-1]}")

    def _install(self, *how: str) -> None:
        """Install mounted sources that are not installed yet, with the command in the image."""
        lines: list[str] = []

        def note(line: str) -> None:
            if line.strip():
                lines.append(log_text(line.strip()))
                self.say(f"  {lines[-1]}")

        done = self.deployment.compose.stream(
            *how, self.name, "envgen-install", on_line=note, timeout=INSTALLING
        )
        if not done.code:
            return
        from envgen.explain.read import cause_of

        # All lines were printed. The last one says what failed; but on a full disk anything may
        # fail.
        reason = lines[-1].removeprefix("envgen: ") if lines else ""
        hint = f"to look closer: envgen run {self.deployment.profile.chosen_variant} {self.name} sh"
        if (cause := cause_of(lines)) and cause.rule in ("no_space", "undeclared_dependency"):
            reason, hint = cause.cause, in_profile(cause.cure, self.deployment.profile, self.name)
        what = f"the mounted sources could not be installed (exit code {done.code})"
        raise ServiceError(what + (f": {reason}" if reason else ""), hint=hint)

    def _patience(self) -> float:
        health = self.service.health
        if self.service.ready or (health is None and self.service.http_port):
            return float((self.service.ready or Ready()).timeout.seconds)
        return (
            60.0
            if health is None
            else 60.0 + health.start_period.seconds + health.interval.seconds * health.retries
        )

    def wait(self, container_id: str, timeout: float | None, *, already: bool = False) -> Awaited:
        """Wait until it is ready; StartFailure otherwise. The time-out starts after the
        installation of sources.

        ``already``: it ran before.
        """
        url = reachable_url(self.deployment.effective.services[self.name], self.deployment)
        key = key_of(self.deployment)
        waiter = Waiter(self.deployment.engine, self.name, self.service, url, self.say, key)
        seconds = timeout if timeout is not None else self._patience()
        return waiter.wait(container_id, time.monotonic() + seconds, already=already)


def what_next(profile: Profile, service: str) -> str:
    """The commands for a service that keeps starting."""
    chosen = profile.chosen
    return f"`envgen ps {chosen}`, `envgen logs {chosen} -f {service}`, `envgen down {chosen}`"


def service_url(service: Service, machine: str) -> str:
    """``http://address:port`` of the port that answers HTTP; "" if the service publishes none.

    ``machine``: the address of the engine's machine, on which ports are published.
    """
    port = _answering(service)
    if port is None:
        return ""
    return f"http://{port.address if port.address not in ('', '0.0.0.0') else machine}:{port.host}"


def _answering(service: Service) -> PortMapping | None:
    inside = service.http_port
    return next(
        (port for port in service.host_ports if not inside or inside == port.container), None
    )


def reachable_url(service: Service, deployment: Deployment) -> str:
    """The URL at which this process reaches the service; for an ssh:// engine, through a forwarded
    port.
    """
    port, endpoint = _answering(service), deployment.endpoint
    if port is None or not endpoint.host.startswith("ssh://"):
        return service_url(service, deployment.address)
    address = port.address if port.address not in ("", "0.0.0.0", "::") else "127.0.0.1"
    address = f"[{address}]" if ":" in address else address
    return f"http://127.0.0.1:{forward(endpoint.host, f'{address}:{port.host}').port}"
