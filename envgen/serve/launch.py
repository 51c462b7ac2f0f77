"""Start one service of a profile and wait until it really answers; on failure leave nothing half-started behind."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from envgen.engine import jobs
from envgen.engine.base import Container, Engine
from envgen.engine.compose import Compose
from envgen.engine.endpoint import find_endpoint
from envgen.errors import ProcessError, ServiceError
from envgen.profile.model import GpuMode, Profile, Ready, Service
from envgen.render.compose import overlay_file
from envgen.render.plan import compose_environment
from envgen.serve import preflight
from envgen.serve.readiness import Answer, ask, printable

Say = Callable[[str], None]
# A service's output and exit code -> cause and cure. The rules live in a room of the same tier: the caller brings them.
Diagnose = Callable[[Sequence[str], int | None], "tuple[str, str] | None"]
POLL = 0.25  # seconds between two looks at the container
ASK_AGAIN = 1.0  # seconds between two questions to a server that is not ready
REPEAT = 10.0  # seconds after which an unchanged state is said again
LAST_LINES = 30
REFUSALS = 5  # prompts answered with an error, after which waiting won't help
RESTARTS = 3  # after so many it is a loop, whatever the policy still allows


@dataclass(frozen=True)
class Started:
    """A service that is ready. ``answer`` is what it completed, where the profile asks for that."""

    container: Container
    seconds: float
    url: str
    answer: str
    already: bool


def compose_for(profile: Profile, root: Path, folder: Path, engine: Engine, gpu: GpuMode = GpuMode.NONE) -> Compose:
    """The Compose project of ``profile`` as rendered into ``folder``, with this machine's paths and number of jobs."""
    files = [folder / profile.compose_file]
    if profile.gpu is GpuMode.AUTO and gpu in (GpuMode.ALL, GpuMode.CDI):
        files.append(folder / overlay_file(profile, gpu))
    build = profile.build
    decided = jobs.decide(build.max_jobs.count, build.memory_per_job.bytes, jobs.capacity(engine.info()))
    # Relative paths in the rendered file start from compose/, wherever the copy that is used lies.
    return Compose(find_endpoint(), files, root / "compose", compose_environment(profile, root, decided.count))


class Launcher:
    """Starts ``name`` of ``profile``. ``say`` gets a line of progress at a time; ``diagnose`` reads a failure's log."""

    def __init__(
        self, engine: Engine, compose: Compose, profile: Profile, name: str, say: Say, diagnose: Diagnose
    ) -> None:
        self.engine = engine
        self.compose = compose
        self.profile = profile
        self.name = name
        self.say = say
        self.diagnose = diagnose
        self.service: Service = profile.services[name]
        self.created = False  # from then on it can be left alone
        self._restarts = 0  # how often the container was restarted before we looked

    def start(self, *, wait: bool, install: bool, timeout: float | None) -> Started:
        """Create or update the container, install mounted sources, wait. ServiceError with the reason if it fails."""
        began = time.monotonic()
        before = {one.id for one in self.engine.containers(self.profile.compose_name, all=True)}
        running = {one.id for one in self.engine.containers(self.profile.compose_name, self.name)}
        install = install and preflight.is_development(self.profile)
        try:
            if install and not self.service.interactive:
                # A server needs its sources when it starts; a shell service can get them while it runs.
                self._install(*(("exec", "-T") if running else ("run", "--rm", "--no-deps", "-T")))
            container = self._create()
            self.created = True
            already = container.id in running
            if install and self.service.interactive:
                self._install("exec", "-T")
            answer = Answer(True)
            if wait:
                answer = self._wait(container.id, began + (timeout if timeout is not None else self._patience()))
            container = self.engine.container(container.id) or container
            return Started(container, time.monotonic() - began, self.url, answer.text, already)
        except (ServiceError, ProcessError) as error:
            self._clean_up(before)
            if isinstance(error, ProcessError):
                raise ServiceError(f"{self.name} was not started: {error}") from None
            raise
        except KeyboardInterrupt:
            if not self.created:  # later it is only the waiting that ends
                self._clean_up(before)
            raise

    def await_ready(self, container: Container, timeout: float | None) -> Started:
        """Wait for a container that runs already. ServiceError when it fails; nothing is removed then."""
        began = time.monotonic()
        answer = self._wait(container.id, began + (timeout if timeout is not None else self._patience()))
        return Started(
            self.engine.container(container.id) or container, time.monotonic() - began, self.url, answer.text, False
        )

    @property
    def url(self) -> str:
        """Where the service answers on this machine; empty if it publishes nothing."""
        ready = self.service.ready
        inside = ready.port if ready and ready.port else None
        for port in self.service.ports:
            if inside in (None, port.container):
                host = urlsplit(self.compose.endpoint.host).hostname or "127.0.0.1"
                return f"http://{port.address if port.address not in ('', '0.0.0.0') else host}:{port.host}"
        return ""

    def _create(self) -> Container:
        lines: list[str] = []
        done = self.compose.stream(
            "up", "--detach", "--no-build", "--pull", "never", self.name, on_line=lambda line: self._note(line, lines)
        )
        if done.code:
            reason = "\n".join(lines[-LAST_LINES:])
            cause = self.diagnose(lines, None)
            raise ServiceError(
                f"{self.name} was not started: docker compose ended with {done.code}:\n{reason}"
                + (f"\n  cause: {cause[0]}" if cause else ""),
                hint=cause[1] if cause else "",
            )
        found = self.engine.containers(self.profile.compose_name, self.name, all=True)
        if not found:
            raise ServiceError(f"{self.name} was started, and its container is gone already")
        return found[0]

    def _note(self, line: str, lines: list[str]) -> None:
        if line.strip():
            lines.append(printable(line.strip()))
            self.say(f"  {lines[-1]}")

    def _install(self, *how: str) -> None:
        """The in-image command installs what is not installed yet; it needs nothing when all is."""
        lines: list[str] = []
        done = self.compose.stream(*how, self.name, "envgen-install", on_line=lambda line: self._note(line, lines))
        if done.code:
            reason = "\n".join(lines[-LAST_LINES:])
            raise ServiceError(
                f"the mounted sources could not be installed (exit code {done.code}):\n{reason}",
                hint=f"to look closer: envgen up {self.name} --no-install; envgen exec {self.name} -- envgen-install",
            )

    def _patience(self) -> float:
        if self.service.ready:
            return float(self.service.ready.timeout.seconds)
        health = self.service.health
        return 60.0 if health is None else 60.0 + health.start_period.seconds + health.interval.seconds * health.retries

    def _wait(self, container_id: str, deadline: float) -> Answer:
        watch = _Watch(self.say, self.name)
        stable_since: float | None = None
        refusals = 0
        container = self.engine.container(container_id)
        self._restarts = container.restarts if container and container.running else 0
        while True:
            container = self.engine.container(container_id)
            self._still_there(container)
            assert container is not None
            watch.note(container, self.engine)
            if container.running and container.health in ("", "none", "healthy"):
                # Without a health check, a program that fails at its start must have the time to do so.
                stable_since = stable_since or time.monotonic()
                settled = container.health == "healthy" or time.monotonic() - stable_since >= 1.0
                answer = self._answers(self.service.ready) if settled else Answer(False, "has just started")
                if answer.ready:
                    return answer
                refusals += answer.refused
                if answer.fatal or refusals >= REFUSALS:
                    raise self._failure(container, answer.why)
                watch.why = answer.why
            else:
                stable_since = None
            if time.monotonic() > deadline:
                why = watch.why or f"it is {container.state}, health {container.health or 'unknown'}"
                raise self._failure(container, f"not ready in time: {why}")
            time.sleep(ASK_AGAIN if watch.why and stable_since else POLL)

    def _answers(self, ready: Ready | None) -> Answer:
        if ready is None or ready.model is None or not self.url:
            return Answer(True)
        return ask(self.url, ready.model)

    def _still_there(self, container: Container | None) -> None:
        if container is None:
            raise ServiceError(f"{self.name}: its container was removed while it started")
        if container.state in ("exited", "dead"):
            reason = "killed for want of memory" if container.oom_killed else f"ended with {container.exit_code}"
            raise self._failure(container, f"its program {reason} {container.error}".rstrip())
        restarts = container.restarts - self._restarts
        if restarts >= RESTARTS:
            raise self._failure(container, f"it ended {restarts} times, last with {container.exit_code}")
        # Docker also calls one unhealthy that has just ended and is being restarted.
        if container.health == "unhealthy" and container.state == "running":
            raise self._failure(container, "Docker calls it unhealthy")

    def _failure(self, container: Container, why: str) -> ServiceError:
        """The reason, the container's last lines, and the classified cause where there is one."""
        lines = [printable(line) for line in self.engine.logs(container.id, tail=LAST_LINES).splitlines()]
        cause = self.diagnose(lines, container.exit_code or None)
        told = "\n".join(f"    {line}" for line in lines) or "    (it wrote nothing)"
        return ServiceError(
            f"{self.name} is not ready: {why}. Its last lines:\n{told}" + (f"\n  cause: {cause[0]}" if cause else ""),
            hint=cause[1] if cause else f"envgen up {self.name} --no-wait keeps it running for a closer look",
        )

    def _clean_up(self, before: set[str]) -> None:
        """Remove what this start has created. What was there before stays."""
        with contextlib.suppress(ProcessError):
            if before:
                now = self.engine.containers(self.profile.compose_name, self.name, all=True)
                if any(one.id not in before for one in now):
                    self.compose.run("rm", "--stop", "--force", self.name)
            else:
                self.compose.run("--profile", "*", "down", "--remove-orphans")
            self.say(f"  {self.name}: removed what was half-started")


class _Watch:
    """Says what changes while waiting, and every now and then that nothing has."""

    def __init__(self, say: Say, name: str) -> None:
        self._say = say
        self._name = name
        self._began = time.monotonic()
        self._last = ""
        self._said = 0.0
        self.why = ""

    def note(self, container: Container, engine: Engine) -> None:
        now = time.monotonic()
        state = " ".join(self._words(container))
        if state == self._last and now - self._said < REPEAT:
            return
        self._last, self._said = state, now
        last_line = printable(engine.logs(container.id, tail=1).strip())[:100]
        self._say(f"  {self._name}: {state}, {now - self._began:.0f} s" + (f" | {last_line}" if last_line else ""))

    def _words(self, container: Container) -> Iterator[str]:
        yield container.state
        if container.health not in ("", "none"):
            yield f"({container.health})"
        if container.restarts:
            yield f"restarted {container.restarts} times"
