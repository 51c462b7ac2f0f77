"""Why a program ended, or does not answer: the one place that says so, for up, stay, ps, status,
doctor and explain.

Nothing is stored for this. Docker keeps the time, the exit code, whether memory ran out, and how
often it has started the program again, until the container is removed. Whether Docker had asked a
server to stop, docker/runtime/libexec/server writes into its log; of other programs it is taken
from the exit code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from envgen.binding import JsonDict
from envgen.deployment import Deployment
from envgen.engine.client import Engine
from envgen.engine.values import WEDGED, Container
from envgen.lock.model import ProfileLock
from envgen.profile.model import Profile
from envgen.redact import redact_secrets
from envgen.text import GIB, counted, instant, plain_text, shorten, visible

if TYPE_CHECKING:  # what explains an end is imported when there is one
    from envgen.explain import Circumstances

LINES = 5000  # of the log, for the cause: it is often printed long before the last lines
SHOWN = 300  # characters of the line that proves a cause
STARTS = "envgen: starting the server"
ASKED = "envgen: Docker asks the server to stop ("
# Exit codes of other programs than servers, ended on purpose: done, Ctrl-C, `docker stop` (SIGTERM
# or SIGKILL).
ON_PURPOSE = (0, 130, 137, 143)
# Fact -> the package whose locked version it is.
LOCKED = {"cutlass_dsl": "nvidia-cutlass-dsl", "cudnn": "nvidia-cudnn-cu13", "torch": "torch"}


def log_text(line: str) -> str:
    """A line of a container's log, safe for a terminal: no secrets, no colours, no control
    characters.
    """
    return visible(redact_secrets(plain_text(line)))


# A failure that is happening


@dataclass(eq=False)
class StartFailure(Exception):
    """Why a service is not ready, or runs no more. ``container`` is None if none was created or it
    is gone.
    """

    reason: str
    container: Container | None = None
    phases: dict[str, float] = field(default_factory=dict)
    shown: dict[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    restarts: int = 0
    lines: tuple[str, ...] = ()  # of another program, such as Compose
    says_all: bool = False  # the service runs and answers wrongly: its log has no deeper cause
    hint: str = ""  # what to do, if no cause is known

    def __str__(self) -> str:
        return self.reason


def ending(container: Container | None) -> StartFailure:
    """The failure of a container that has ended."""
    return StartFailure(
        f"its process {container.how_ended}" if container else "its container was removed",
        container,
    )


# The cause of it


@dataclass(frozen=True)
class Cause:
    """Why something failed, as far as its log says: ``cause``, ``rule`` and ``cure`` as `envgen
    explain` has them.

    ``evidence``: the line of the log that proves it. Without a rule, ``cause`` is the first
    exception, and ``clues`` are lines that help to search. Each is "" where unknown.
    """

    cause: str = ""
    evidence: str = ""
    rule: str = ""
    cure: str = ""
    clues: tuple[str, ...] = field(default=(), repr=False)

    @property
    def why(self) -> str:
        """The cause with its evidence; "" where unknown."""
        return self.cause + (f": {shorten(self.evidence, SHOWN)}" if self.evidence else "")


def judged(lines: Sequence[str], about: Circumstances) -> Cause:
    """The cause of a service's end or failure. ``about``: what is known beside its log."""
    from envgen.explain.first import is_consequence
    from envgen.explain.read import read_lines
    from envgen.explain.unknown import in_words

    report = read_lines(lines, replace(about, failed=True), kind="serve")
    known = report.cause
    first = report.first
    if known is None:
        words = (
            tuple(in_words(first, report.clues))
            if first or (report.clues and report.clues.lines)
            else ()
        )
        return Cause(f"first exception: {shorten(str(first), SHOWN)}" if first else "", clues=words)
    evidence = known.evidence if any(known.evidence in line for line in lines) else ""
    if known.rule == "engine_dead":  # it has died of something
        evidence = "no exception before it: a process of the engine was killed"
        evidence = str(first) if first and not is_consequence(first.text) else evidence
    return Cause(known.said, evidence, known.rule, known.cure)


def cause_in(deployment: Deployment, failure: StartFailure) -> tuple[Cause, list[str]]:
    """The cause of ``failure``, and the lines in which it was looked for."""
    container = failure.container
    lines = [log_text(line) for line in failure.lines]
    if container:
        log = deployment.engine.logs(container.id, tail=LINES)
        logged = [log_text(line) for line in log.splitlines()]
        if container.state == "exited":  # not between two runs of Docker's
            logged = _last_run(logged)
        lines += logged
    if failure.says_all:
        return Cause(), lines
    return judged(lines, known_of(deployment, container)), lines


# An end that is over


@dataclass(frozen=True, kw_only=True)
class Ended(Cause):
    """The last end of a container's program.

    ``asked``: Docker asked it to stop (`envgen stop`, `docker stop`, the end of the engine), or it
    was no server and has done its work. ``exit_code``: the program's own; None where Docker no
    longer knows it. ``runs``: Docker has started it again, ``restarts`` times so far. ``at`` and
    ``since`` (the start of the one that runs): times of the engine.
    """

    service: str
    container: str
    at: str
    asked: bool
    exit_code: int | None = None
    out_of_memory: bool = False
    runs: bool = False
    restarts: int = 0
    since: str = ""

    @property
    def failed(self) -> bool:
        """Whether it is down and should not be."""
        return not self.asked and not self.runs

    def __str__(self) -> str:
        """What happened, in one line."""
        if self.runs:
            times = counted(self.restarts, "time")
            return f"{self.service} was restarted {times} by Docker, last at {short(self.since)}"
        if self.asked:
            return f"{self.service} was stopped at {short(self.at)}"
        if self.out_of_memory:
            return f"{self.service} was killed at {short(self.at)}, because memory ran out"
        if self.exit_code == 137:
            return (
                f"{self.service} was killed at {short(self.at)} (SIGKILL, not for its memory limit)"
            )
        if self.exit_code == WEDGED:
            return f"{self.service} generated nothing any more, and was ended at {short(self.at)}"
        return (
            f"{self.service} ended by itself at {short(self.at)}, with exit code {self.exit_code}"
        )

    def data(self) -> JsonDict:
        """All of it, for JSON."""
        facts = {name: value for name, value in asdict(self).items() if name != "clues"}
        return facts | {"failed": self.failed, "text": str(self), "why": self.why}


def short(time: str) -> str:
    """A time of the engine (2026-01-02T03:04:05.678Z) to the second."""
    return f"{time[:19]}Z"


def last_end(engine: Engine, container: Container) -> Ended | None:
    """How the program of ``container`` ended last; None if it never has, or if it was started again
    on purpose.

    Also None for a container of `envgen run`.
    """
    if container.one_off or not container.finished_at or container.state == "created":
        return None
    runs = container.running
    if runs and not container.restarts:
        return None
    started = instant(container.started_at)
    since, until = ("", started) if runs else (started, "")
    text = engine.logs(container.id, tail=LINES, since=since, until=until)
    # Of a container that was restarted, Docker does not know when the run before had begun.
    lines = _last_run([log_text(line) for line in text.splitlines()])
    end = Ended(
        service=container.service,
        container=container.name,
        at=container.finished_at,
        asked=not runs and _asked(container, lines),
        exit_code=None if runs else container.own_code,
        out_of_memory=container.oom_killed and not runs,
        runs=runs,
        restarts=container.restarts,
        since=container.started_at if runs else "",
    )
    if end.asked:
        return end
    code = end.exit_code or None
    about = replace(circumstances(container), exit_code=code, oom_killed=end.out_of_memory)
    cause = judged(lines, about)
    return replace(end, **vars(cause) if cause.cause else {"cause": container.error})


def last_ends(engine: Engine, containers: Iterable[Container]) -> Mapping[str, Ended]:
    """Container ID -> ``last_end``, of those that have one."""
    ends = {one.id: last_end(engine, one) for one in containers}
    return {name: end for name, end in ends.items() if end is not None}


def _asked(container: Container, lines: Sequence[str]) -> bool:
    if container.oom_killed or container.error:
        return False
    if not container.server:
        return container.exit_code in ON_PURPOSE
    if container.exit_code == 0 or any(ASKED in line for line in lines):
        return True
    # Stopped before the server had begun, such as while mounted sources were installed.
    return container.exit_code in (130, 143) and STARTS not in lines and len(lines) < LINES


def _last_run(lines: list[str]) -> list[str]:
    """What a container has logged since its program was started last."""
    starts = [number for number, line in enumerate(lines) if line == STARTS]
    return lines[starts[-1] :] if starts else lines


# What is known beside the log


def circumstances(
    container: Container | None, *, profile: Profile | None = None, lock: ProfileLock | None = None
) -> Circumstances:
    """What is known of a container beside its log: how it ended, or that it runs and does not
    answer.

    ``profile`` and ``lock``: of the service; without them its settings and packages are unknown.
    """
    from envgen.explain import Circumstances

    locked = {}
    if lock:
        locked = {name: lock.version(package) for name, package in LOCKED.items()}
    facts = {name: version for name, version in locked.items() if version}
    if profile and profile.mounted_sources:
        facts["mounted"] = "a mounted source"
    if container is None:
        return Circumstances(failed=True, facts=facts)
    if container.oom_killed and container.memory:
        limit = f"the container may use {container.memory / GIB:.2f} GiB"
        facts |= {"memory": limit, "setter": "the memory limit of the container"}
    elif container.oom_killed:
        facts["memory"] = (
            "the container has no limit of its own, so the machine's was in use, or a cgroup's above it"
        )
    if cuda := container.env.get("CUDA_VERSION", ""):
        facts["cuda"] = cuda
    ended = not container.running
    code = (container.own_code or None) if ended else None
    return Circumstances(ended, code, container.oom_killed, facts)


def known_of(deployment: Deployment, container: Container | None) -> Circumstances:
    """``circumstances`` of a container of a deployment."""
    return circumstances(container, profile=deployment.profile, lock=deployment.lock)


def with_profile_named(cure: str, profile: Profile, service: str) -> str:
    """``cure`` with the service and the profile in its commands."""

    def named(command: re.Match[str]) -> str:
        verb, _, rest = command[1].partition(" ")
        plain = {"lock": profile.lock_command, "render": profile.render_command}.get(verb)
        if plain:
            return f"`{plain} {rest}".rstrip() + "`"
        chosen = profile.chosen_variant if verb == "up" else profile.chosen
        before, service_word, after = f" {rest}".partition(" SERVICE")
        return f"`envgen {verb}{before.rstrip()} {chosen}{service_word}{after}`"

    return re.sub(r"`envgen ([^`]*)`", named, cure).replace("SERVICE", service)
