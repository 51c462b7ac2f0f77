"""Start one service of a profile and wait until it really answers; on failure leave nothing behind."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from packaging.utils import canonicalize_name

from envgen import files
from envgen.engine.client import Engine
from envgen.engine.compose import Compose
from envgen.engine.endpoint import Endpoint, find_endpoint, forward_port
from envgen.engine.owner import ROOT, host_user, run_as
from envgen.engine.values import Container
from envgen.errors import ProcessError, RefusedError, ServiceError
from envgen.explain import cause_of
from envgen.files import state_dir
from envgen.profile.model import GpuMode, Profile, Service
from envgen.profile.values import own_path
from envgen.render.compose import overlay_file
from envgen.render.environment import GID_VARIABLE, UID_VARIABLE, compose_environment, port_environment
from envgen.serve import preflight
from envgen.serve.checkouts import guard_file
from envgen.serve.log import log_text
from envgen.serve.readiness import Answer
from envgen.serve.wait import Awaited, Failure, NotReady, Waiter

Say = Callable[[str], None]
LAST_LINES = 30  # of the log, in an error message
CAUSE_LINES = 5000  # of the log, for the cause: what ends a server is often told long before its last words
API_KEY = "VLLM_API_KEY"
_UNDECLARED = re.compile(r"`([^`@]+)(?:@[^`]*)?` depends on `([^`]+)`, but doesn't declare it as a build dependency")
# Keeps what a failed service left behind (its cause: "" where it is unknown); returns where, or "".
Keep = Callable[[Failure, str], str]


@dataclass(frozen=True)
class Started:
    """A service that runs. ``awaited`` tells how it became ready; without waiting, nothing of it is known."""

    container: Container
    seconds: float
    url: str
    already: bool
    awaited: Awaited = field(default_factory=lambda: Awaited(Answer(True), {}, {}))


def compose_for(
    engine: Engine, profile: Profile, root: Path, folder: Path, gpu: GpuMode = GpuMode.NONE,
    endpoint: Endpoint | None = None,
) -> Compose:  # fmt: skip
    """The Compose project of ``profile`` as rendered into ``folder``, with this machine's paths and user.

    ``endpoint``: of the engine, where it is not the one that Docker itself would use.
    """
    files = [folder / profile.compose_file]
    if profile.gpu.asks_engine and gpu in (GpuMode.ALL, GpuMode.CDI):
        files.append(folder / overlay_file(profile, gpu))
    endpoint = endpoint or find_endpoint()
    if endpoint.local:
        users = [name for name in profile.services if run_as(engine, profile, name) not in ("", ROOT)]
        if guards := guard_file(profile, root, folder, users if users and engine.info().remapped else ()):
            files.append(guards)
    if profile.compose is not None:
        files.append(root / own_path(profile.compose.path))
    # Relative paths in the rendered file start from compose/, wherever the copy that is used is.
    environment = compose_environment(profile, root)
    if any(profile.user_of(name) == "host" for name in profile.services):
        uid, gid = host_user(engine)
        environment |= {UID_VARIABLE: str(uid), GID_VARIABLE: str(gid)}
    return Compose(endpoint, files, root / "compose", environment)


def key_of(profile: Profile) -> str:
    """The key that the profile's servers want, from this terminal; "" where they want none."""
    return os.environ.get(API_KEY, "") if API_KEY in profile.secrets else ""


@dataclass
class Launcher:
    """Starts ``name`` of ``profile``. ``say`` gets a line of progress at a time;

    ``keep`` is called for every failure, before anything is removed.
    """

    engine: Engine
    compose: Compose
    profile: Profile
    name: str
    say: Say
    keep: Keep = lambda _failure, _cause: ""
    closer: str = ""  # the hint where no cause is known
    verdict: str = "is not ready"
    created: bool = False  # from then on it can be left alone

    @property
    def service(self) -> Service:
        return self.profile.services[self.name]

    def start(self, *, wait: bool, install: bool, timeout: float | None) -> Started:
        """Create or update the container, install mounted sources, wait. ServiceError with the reason if it fails."""
        began = time.monotonic()
        before: set[str] | None = None  # until it is our turn, nothing there is of this start
        install = install and preflight.is_development(self.profile)
        try:
            with self._alone():
                before = {one.id for one in self.engine.containers(self.profile.compose_name, all=True)}
                running = {one.id for one in self.engine.containers(self.profile.compose_name, self.name)}
                if install and not self.service.interactive:
                    # A server needs its sources when it starts; a shell service can get them while it runs.
                    self._install(*(("exec", "-T") if running else ("run", "--rm", "--no-deps", "-T")))
                container = self._create()
                self.created = True
            already = container.id in running
            if install and self.service.interactive:
                self._install("exec", "-T")
            awaited = self.wait(container.id, timeout) if wait else None
            return self._started(container, began, already, awaited)
        except NotReady as error:
            failed = self.failed(error.failure)
            self._clean_up(before)
            raise failed from None
        except (ServiceError, ProcessError, RefusedError) as error:
            self._clean_up(before)
            if isinstance(error, ProcessError):
                raise ServiceError(f"{self.name} was not started: {error}") from None
            raise
        except KeyboardInterrupt:
            if not self.created:  # later it is only the waiting that ends
                self._clean_up(before)
            raise

    def _alone(self) -> contextlib.AbstractContextManager[None]:
        """One start of a profile at a time: Compose would take the other's half-made container for its own."""
        root, name = self.compose.folder.parent, self.profile.name

        def wait() -> None:
            self.say(f"  another `envgen up` starts a service of profile {name}: waiting for it")

        return files.locked(state_dir(root, "state") / f"up-{name}.lock", within=root, on_wait=wait)

    def await_ready(self, container: Container, timeout: float | None) -> Started:
        """Wait for a container that runs already. ServiceError when it fails; nothing is removed then."""
        began = time.monotonic()
        try:
            awaited = self.wait(container.id, timeout)
        except NotReady as error:
            raise self.failed(error.failure) from None
        return self._started(container, began, False, awaited)

    def _started(self, container: Container, began: float, already: bool, awaited: Awaited | None) -> Started:
        container = self.engine.container(container.id) or container
        seconds = time.monotonic() - began
        if awaited is None:
            return Started(container, seconds, self.url, already)
        if already:  # its phases were over before we looked; what we saw of them is the time it took to read its log
            awaited = replace(awaited, phases={})
        return Started(container, seconds, self.url, already, awaited)

    @property
    def url(self) -> str:
        """Where the service answers on the engine's machine; empty if it publishes nothing."""
        return service_url(self.service, self.compose.endpoint.host)

    def _create(self) -> Container:
        lines: list[str] = []
        # Installing may have taken minutes, and other services of the machine have started meanwhile.
        self.profile = preflight.settled(self.engine, self.profile)
        self.compose = replace(self.compose, env={**self.compose.env, **port_environment(self.profile)})
        done = self.compose.stream(
            "up", "--detach", "--no-build", "--pull", "never", self.name, on_line=lambda line: self._note(line, lines)
        )
        found = self.engine.containers(self.profile.compose_name, self.name, all=True)
        root = self.compose.folder.parent
        if done.code and (refused := preflight.changed_meanwhile(self.engine, self.profile, root, self.name, lines)):
            raise refused
        if done.code:
            # Made and not started (a port, a runtime, a program that is not there): Compose's words are the log.
            raise NotReady(
                Failure(f"docker compose ended with {done.code}", found[0] if found else None, lines=tuple(lines))
            )
        if not found:
            raise ServiceError(f"{self.name} was started, and its container is gone already")
        return found[0]

    def _note(self, line: str, lines: list[str]) -> None:
        if line.strip():
            lines.append(log_text(line.strip()))
            self.say(f"  {lines[-1]}")

    def _install(self, *how: str) -> None:
        """The in-image command installs what is not installed yet; it needs nothing when all is."""
        lines: list[str] = []
        done = self.compose.stream(*how, self.name, "envgen-install", on_line=lambda line: self._note(line, lines))
        if done.code:
            if lacking := undeclared(self.profile, self.name, lines):
                raise lacking
            # All lines have been shown; the last one says what failed, unless the disk is full: then anything fails.
            cause = cause_of(lines)
            full = cause if cause and cause.kind == "no_space" else None
            said = full.summary if full else lines[-1].removeprefix("envgen: ") if lines else ""
            chosen = f"--profile {self.profile.name} {self.name}"
            look = f"to look closer: envgen up {chosen} --no-install; envgen exec {chosen} -- envgen-install"
            raise ServiceError(
                f"the mounted sources could not be installed (exit code {done.code})" + (f": {said}" if said else ""),
                hint=full.cure if full else look,
            )

    def _patience(self) -> float:
        if self.service.ready:
            return float(self.service.ready.timeout.seconds)
        health = self.service.health
        return 60.0 if health is None else 60.0 + health.start_period.seconds + health.interval.seconds * health.retries

    def wait(self, container_id: str, timeout: float | None) -> Awaited:
        """Until it is ready; NotReady. The time starts here: installing mounted sources before it may take minutes."""
        url = reachable_url(self.service, self.compose.endpoint)
        waiter = Waiter(self.engine, self.name, self.service, url, self.say, key_of(self.profile))
        return waiter.wait(container_id, time.monotonic() + (timeout if timeout is not None else self._patience()))

    def failed(self, failure: Failure) -> ServiceError:
        """The error to raise: reason and cause in one sentence, the last lines, the bundle, what to do.

        Everything is kept before anything is removed: this is called first.
        """
        container = failure.container
        log = self.engine.logs(container.id, tail=CAUSE_LINES) if container else ""
        lines = [log_text(line) for line in (*failure.lines, *log.splitlines())]
        code = container.exit_code if container and not container.running else None
        oom_killed = container is not None and container.oom_killed
        known = (
            None if failure.says_all else cause_of(lines, exit_code=code or None, service=True, oom_killed=oom_killed)
        )
        self.say(f"  {self.name}: {failure.reason}; saving a crash bundle")
        kept = self.keep(failure, known.summary if known else "")
        again = f"envgen up {self.name} --profile {self.profile.name} --no-wait keeps it running for a closer look"
        told = "\n".join(f"    {line}" for line in lines[-LAST_LINES:]) or "    (it wrote nothing)"
        return ServiceError(
            f"{self.name} {self.verdict}: {failure.reason}"
            + (f"; cause: {known.summary}" if known else "")
            + (f"\n  its last lines:\n{told}" if container or lines else "")
            + (f"\n  crash bundle: {kept}" if kept else ""),
            hint=in_profile(known.cure, self.profile, self.name) if known else self.closer or again,
        )

    def _clean_up(self, before: set[str] | None) -> None:
        """Remove what this start has created. What was there before stays."""
        if before is None:
            return
        with contextlib.suppress(ProcessError):
            now = self.engine.containers(self.profile.compose_name, all=True)
            others = [one for one in now if one.service != self.name]  # of an `up` beside this one
            if before or others:
                if all(one.id in before for one in now if one.service == self.name):
                    return  # it ran before this start, and goes on running
                self.compose.run("rm", "--stop", "--force", self.name)
            else:
                self.compose.run("--profile", "*", "down", "--remove-orphans")
            self.say(f"  {self.name}: removed the partly started container")


def in_profile(cure: str, profile: Profile, service: str) -> str:
    """A rule's ``cure`` for this service: its commands name the profile, too."""
    return re.sub(r"(`envgen \w+)(?= SERVICE)", rf"\1 --profile {profile.name}", cure).replace("SERVICE", service)


def what_next(profile: Profile, service: str) -> str:
    """The commands for a service that is left to itself."""
    chosen = f"--profile {profile.name}"
    return f"`envgen ps {chosen}`, `envgen logs {chosen} -f {service}`, `envgen down {chosen}`"


def undeclared(profile: Profile, service: str, lines: Sequence[str]) -> ServiceError | None:
    """What uv explains where the build of a mounted source imports what is not installed. Its own advice is for a
    build in isolation: here the profile says what is installed before, or the image has it."""
    found = next((match for line in lines if (match := _UNDECLARED.search(line))), None)
    named = [
        name
        for name, one in profile.mounted_sources.items()
        if found and canonicalize_name(one.distribution) == found[1]
    ]
    if found is None or not named:
        return None
    key, module = f"sources.{named[0]}.install.requires", found[2]
    place = key if profile.sources[named[0]].install.requires else "pip.tools"
    why = f"which {key} does not name" if place == key else "which its pyproject.toml does not name"
    return ServiceError(
        f"{named[0]} could not be installed: its build imports {module}, {why}",
        hint=f"add the package of {module} to {place}, then: envgen up --build {service} --profile {profile.name}",
    )


def service_url(service: Service, engine_host: str) -> str:
    """``http://address:port`` of the port that answers HTTP; empty if the service publishes none.

    ``engine_host``: the engine's address (unix://... or tcp://host:port); ports are published on that machine.
    """
    inside = service.ready.port if service.ready and service.ready.port else None
    for port in service.host_ports:
        if inside in (None, port.container):
            host = urlsplit(engine_host).hostname or "127.0.0.1"
            return f"http://{port.address if port.address not in ('', '0.0.0.0') else host}:{port.host}"
    return ""


def reachable_url(service: Service, endpoint: Endpoint) -> str:
    """The same service as this process reaches it: what an ssh:// engine publishes, through ssh."""
    url = service_url(service, endpoint.host)
    if not url or not endpoint.host.startswith("ssh://"):
        return url
    inside = service.ready.port if service.ready and service.ready.port else None
    port = next(port for port in service.host_ports if inside in (None, port.container))
    address = port.address if port.address not in ("", "0.0.0.0", "::") else "127.0.0.1"
    address = f"[{address}]" if ":" in address else address
    return f"http://127.0.0.1:{forward_port(endpoint.host, f'{address}:{port.host}')}"
