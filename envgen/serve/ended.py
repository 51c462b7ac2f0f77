"""How the program of a container ended: Docker's record of it, and the cause in its log.

Nothing is stored for this. Docker keeps the time, the exit code, whether memory ran out, and how often it has started
the program again, until the container is removed. Whether Docker had asked a server to stop,
docker/runtime/libexec/server writes into its log; of other programs it is taken from the exit code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from envgen.engine.client import Engine
from envgen.engine.values import Container
from envgen.explain import Circumstances, cause_of
from envgen.explain.first import first_exception
from envgen.serve.circumstances import look
from envgen.serve.wait import log_text
from envgen.text import counted, instant, shorten

LINES = 5000  # of the log, for the cause: it is often printed long before the last lines
SHOWN = 300  # characters of the line that proves a cause
STARTS = "envgen: starting the server"
ASKED = "envgen: Docker asks the server to stop ("
# Exit codes of other programs than servers, ended on purpose: done, Ctrl-C, `docker stop` (SIGTERM or SIGKILL).
ON_PURPOSE = (0, 130, 137, 143)


@dataclass(frozen=True)
class Ended:
    """The last end of a container's program.

    ``asked``: Docker asked it to stop (`envgen stop`, `docker stop`, the end of the engine), or it was no server and
    has done its work. ``exit_code``: the program's own; None where Docker no longer knows it. ``runs``: Docker has
    started it again, ``restarts`` times so far. ``at`` and ``since`` (the start of the one that runs): times of the
    engine. ``cause``, ``evidence``, ``rule`` and ``cure``: as `envgen explain` has them; of an unknown cause, ``cause``
    is the first exception. Each is "" where unknown.
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
    cause: str = ""
    evidence: str = ""
    rule: str = ""
    cure: str = ""

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
            return f"{self.service} was killed at {short(self.at)} (SIGKILL, not for its memory limit)"
        return f"{self.service} ended by itself at {short(self.at)}, with exit code {self.exit_code}"

    @property
    def why(self) -> str:
        """The cause with its evidence; "" where unknown."""
        return self.cause + (f": {shorten(self.evidence, SHOWN)}" if self.evidence else "")

    def data(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return asdict(self) | {"failed": self.failed, "text": str(self), "why": self.why}


def short(time: str) -> str:
    """A time of the engine (2026-01-02T03:04:05.678Z) to the second."""
    return f"{time[:19]}Z"


def last_end(engine: Engine, container: Container) -> Ended | None:
    """How the program of ``container`` ended last; None if it never has, or if it was started again on purpose.

    Also None for a container of `envgen run`.
    """
    if container.one_off or not container.finished_at or container.state == "created":
        return None
    runs = container.running
    if runs and not container.restarts:
        return None
    began, until = ("", container.started_at) if runs else (container.started_at, "")
    text = engine.logs(container.id, tail=LINES, since=instant(began), until=instant(until))
    lines = [log_text(line) for line in text.splitlines()]
    # Of a container that was restarted, Docker does not know when the run before had begun.
    start = max((number for number, line in enumerate(lines) if line == STARTS), default=0)
    lines = lines[start:]
    found = Ended(
        container.service, container.name, container.finished_at, asked=not runs and _asked(container, lines),
        exit_code=None if runs else container.own_code, out_of_memory=container.oom_killed and not runs, runs=runs,
        restarts=container.restarts, since=container.started_at if runs else "",
    )  # fmt: skip
    if found.asked:
        return found
    about = replace(look(engine, container), exit_code=found.exit_code or None, oom_killed=found.out_of_memory)
    return _with_cause(found, container, lines, about)


def last_ends(engine: Engine, containers: Iterable[Container]) -> Mapping[str, Ended]:
    """Container ID -> ``last_end``, of those that have one."""
    found = {one.id: last_end(engine, one) for one in containers}
    return {name: end for name, end in found.items() if end is not None}


def _asked(container: Container, lines: Sequence[str]) -> bool:
    if container.oom_killed or container.error:
        return False
    if not container.server:
        return container.exit_code in ON_PURPOSE
    if container.exit_code == 0 or any(ASKED in line for line in lines):
        return True
    # Stopped before the server had begun, such as while mounted sources were installed.
    return container.exit_code in (130, 143) and STARTS not in lines and len(lines) < LINES


def _with_cause(end: Ended, container: Container, lines: list[str], about: Circumstances) -> Ended:
    known = cause_of(lines, about, service=True)
    first = first_exception(lines)
    if known and known.rule == "engine_dead":  # it has died of something
        text = (
            str(first)
            if first and not first.is_consequence
            else "no exception before it: a process of the engine was killed"
        )
        return replace(end, cause=known.cause, evidence=text, rule=known.rule, cure=known.cure)
    if known:
        shown = known.evidence if any(known.evidence in line for line in lines) else ""
        return replace(end, cause=known.cause, evidence=shown, rule=known.rule, cure=known.cure)
    return replace(end, cause=f"first exception: {shorten(str(first), SHOWN)}" if first else container.error)
