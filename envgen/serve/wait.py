"""Waiting for a container to answer: its state, its log, its phases and limits, and the question itself.

The question is asked in a thread, so that a server that hangs in its answer is watched like one that loads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from envgen.engine.client import Engine
from envgen.engine.process import in_background
from envgen.engine.values import Container
from envgen.errors import EngineTimeout
from envgen.profile.model import Ready, Service
from envgen.serve.log import Evidence, LogReader, log_text
from envgen.serve.phases import DOING, Phase, Progress
from envgen.serve.readiness import Answer, Question, ask
from envgen.text import counted

POLL = 0.25  # seconds between two looks at the container
ASK_AGAIN = 1.0  # seconds between two questions to a server that is not ready
REPEAT = 10.0  # seconds after which an unchanged state is said again
REFUSALS = 3  # answers that are none, after which waiting won't help
SICKNESS = 60.0  # seconds without an answer of the engine after which it is the trouble
RESTARTS = 3  # after so many it is a loop, whatever the policy still allows
LINGER = 3.0  # seconds that the log gets to show what it must, when the answer is there already
_MODELS = "/v1/models"


@dataclass(frozen=True)
class Awaited:
    """A container that is ready: its answer, the seconds of each phase, what the log has shown."""

    answer: Answer
    phases: dict[str, float]
    shown: dict[str, str]
    restarts: int = 0
    prompt: str = ""


@dataclass(frozen=True)
class Failure:
    """Why a service is not ready. ``container`` is None where none was made or it is gone."""

    reason: str
    container: Container | None = None
    phases: dict[str, float] = field(default_factory=dict)
    shown: dict[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    restarts: int = 0
    lines: tuple[str, ...] = ()  # of a program that is not the container's, such as Compose
    says_all: bool = False  # the service runs and answers wrongly: its log has no deeper cause to tell


class NotReady(Exception):
    """The service failed; carries all that was seen."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


class Waiter:
    """Waits for one container of ``service``. ``say`` gets one line of progress at a time."""

    def __init__(
        self, engine: Engine, name: str, service: Service, url: str, say: Callable[[str], None], api_key: str = ""
    ) -> None:
        self._engine = engine
        self._name = name
        self._url = url
        self._say = say
        self._ready = service.ready or Ready()
        self._policy = service.restart
        model = self._ready.model if url else None
        self._question = Question(model, self._ready.prompt, self._ready.expect_text, api_key) if model else None
        self.progress = Progress(self._ready.phases)
        self._evidence = Evidence(self._ready.expect, self._ready.forbid)
        self._first_restarts = self._restarts = 0
        self._why = ""
        self._step = _MODELS  # that the question is at
        self._said = ("", 0.0)
        self._began = time.monotonic()

    def wait(self, container_id: str, deadline: float) -> Awaited:
        """Until it is ready; ``deadline`` as of time.monotonic(). Raises NotReady with the reason."""
        container = self._look(container_id)
        # One that exits at once may have been restarted before this first look.
        self._first_restarts = self._restarts = container.restarts if container.running else 0
        reader = LogReader(self._engine, container_id, container.started_at, self._ready.timeout.seconds)
        asking: Future[Answer] | None = None
        stable_since: float | None = None
        ask_at = asked_at = missed = 0.0
        refusals = 0
        while True:
            try:
                container = self._look(container_id)
                self._note_restarts(container)
                self._read(reader, container)
                self._tell(container)
            except EngineTimeout:
                # A server that loads 60 GB can keep the whole machine from answering.
                missed = missed or time.monotonic()
                if time.monotonic() - missed > SICKNESS:
                    raise
                self._in_time(container, deadline)
                continue
            now, missed = time.monotonic(), 0.0
            if container.state != "running" or container.health not in ("", "none", "healthy"):
                stable_since = asking = None
            else:
                # Without a health check, a program that fails at its start must have the time to do so.
                stable_since = stable_since or now
                settled = container.health == "healthy" or now - stable_since >= 1.0
                if asking is None and settled and now >= ask_at:
                    asking, asked_at = self._ask(), now
                if asking is not None and asking.done():
                    answer, asking, ask_at = asking.result(), None, now + ASK_AGAIN
                    if answer.ready:
                        return self._with_evidence(answer, reader, container)
                    refusals += answer.refused
                    if answer.fatal or refusals >= REFUSALS:
                        raise self._failure(container, answer.why, says_all=answer.fatal)
                    self._why = answer.why
                elif asking is not None and self._step != _MODELS:
                    self.progress.answering()
                    self._why = f"it was asked {now - asked_at:.0f} s ago and has not sent {self._step}"
            self._in_time(container, deadline)
            time.sleep(POLL)

    def _ask(self) -> Future[Answer]:
        """The question on its way; it ends with its own time-outs."""
        question, self._step = self._question, _MODELS
        if question is None:  # nothing is known to ask
            return in_background(lambda: Answer(True))
        return in_background(lambda: ask(self._url, question, timeout=3600, on_step=self._on_step))

    def _on_step(self, step: str) -> None:
        self._step = step

    def _look(self, container_id: str) -> Container:
        """The container, which must be there, alive and not restarting for ever."""
        container = self._engine.container(container_id)
        if container is None:
            raise self._failure(None, "its container was removed while it started")
        if container.state in ("exited", "dead"):
            how = "was killed because memory ran out" if container.oom_killed else f"ended with {container.exit_code}"
            times = f", restarted {counted(container.restarts, 'time')} by Docker" if container.restarts else ""
            raise self._failure(container, f"its program {how} while {self.progress.words()}{times} {container.error}")
        restarts = container.restarts - self._first_restarts
        if restarts >= RESTARTS:
            why = f"it ended {restarts} times, last with {container.exit_code}; Docker restarts it ({self._policy})"
            raise self._failure(container, why)
        # Docker also calls one unhealthy that has just ended and is being restarted.
        if container.health == "unhealthy" and container.state == "running":
            raise self._failure(container, f"Docker calls it unhealthy while {self.progress.words()}")
        return container

    def _note_restarts(self, container: Container) -> None:
        if container.restarts > self._restarts:
            self._restarts = container.restarts
            times = counted(container.restarts, "time")
            self._say(f"  {self._name}: its program ended and was restarted {times} ({self._policy})")
            self.progress.restart()
            self._evidence.restart()
            self._why = ""

    def _read(self, reader: LogReader, container: Container) -> None:
        for line in reader.new_lines():
            self.progress.feed(line)
            self._evidence.feed(line)
        if self._evidence.forbidden is not None:
            name, line = self._evidence.forbidden
            raise self._failure(
                container, f"its log shows what ready.forbid.{name} names: {log_text(line)[:200]!r}", says_all=True
            )

    def _with_evidence(self, answer: Answer, reader: LogReader, container: Container) -> Awaited:
        """The answer is there; so must be what the log has to show."""
        self.progress.answering()
        until = time.monotonic() + LINGER
        while True:
            self._read(reader, container)
            if not self._evidence.missing:
                shown = {name: log_text(line) for name, line in self._evidence.seen.items()}
                return Awaited(answer, self.progress.took(), shown, self._restarts, self._ready.prompt)
            if time.monotonic() > until:
                break
            time.sleep(POLL)
        wanted = "; ".join(f"ready.expect.{name}: {self._evidence.expect[name]}" for name in self._evidence.missing)
        raise self._failure(container, f"it answers, but its log never showed {wanted}", says_all=True)

    def _in_time(self, container: Container, deadline: float) -> None:
        if late := self.progress.overdue():
            raise self._failure(container, f"{late}" + (f": {self._why}" if self._why else ""))
        if time.monotonic() > deadline:
            state = self._why or f"it is {container.state}, health {container.health or 'unknown'}"
            raise self._failure(container, f"not ready in time, still {self.progress.words()}: {state}")

    def _failure(self, container: Container | None, reason: str, *, says_all: bool = False) -> NotReady:
        return NotReady(
            Failure(
                reason.strip(),
                container,
                self.progress.took(),
                dict(self._evidence.seen),
                self._evidence.missing,
                container.restarts if container else self._restarts,
                says_all=says_all,
            )
        )

    def _tell(self, container: Container) -> None:
        """Say what changes while waiting, and every now and then that nothing has."""
        health = f" ({container.health})" if container.health not in ("", "none") else ""
        started = container.state == "running" and self.progress.words() == DOING[Phase.START]  # it says nothing more
        state = container.state + health + ("" if started else f", {self.progress.words()}")
        now = time.monotonic()
        if state == self._said[0] and now - self._said[1] < REPEAT:
            return
        self._said = (state, now)
        last_line = log_text(self._engine.logs(container.id, tail=1).strip())[:100]
        self._say(f"  {self._name}: {state}, {now - self._began:.0f} s" + (f" | {last_line}" if last_line else ""))
