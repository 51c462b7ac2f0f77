"""Waiting for a container to answer: its log, its phases and limits, its state, and the question
itself.

The question is asked in a thread, so that a server that hangs in its answer is watched like one
that loads.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial

from envgen.engine.client import Engine
from envgen.engine.process import in_background
from envgen.engine.values import Container
from envgen.errors import EngineError, EngineTimeout
from envgen.live import doing, now_doing
from envgen.logpattern import LogPattern
from envgen.profile.service import Ready, Service
from envgen.serve.chat import chat_flags
from envgen.serve.ended import StartFailure, log_text
from envgen.serve.phases import DOING, Phase, StartProgress
from envgen.serve.readiness import Question, Readiness, ask
from envgen.text import Verbosity, counted, instant, is_terminal, step_line

# Lines per look: a program that writes more loses its oldest lines. Without a number, the engine
# would read the whole log at each look.
LINES = 5000
LONGEST = 8192  # characters of a line; what a server says about itself is shorter
LOOK = 3.0  # seconds for one look: a program that floods its log must not block everything else


class LogReader:
    """The lines of a container's log from ``since`` on (an instant of the engine), each once.

    Of one that has run for longer than ``window`` seconds: those of its first ``window`` seconds,
    then new ones. What a server logs about itself is at the beginning, and days of requests would
    fill the memory.
    """

    def __init__(
        self,
        engine: Engine,
        container_id: str,
        since: str = "",
        window: float | None = None,
    ) -> None:
        self._engine, self._container_id = engine, container_id
        self._since = instant(since)
        self._until = (
            f"{float(self._since) + window:.9f}" if self._since and window is not None else ""
        )
        self._last = ""  # the timestamp of the last line returned
        self._tail: int | None = None  # the first look sees all
        self._same = 0  # how many lines had that timestamp

    def new_lines(self) -> list[str]:
        """The lines since the last call."""
        until, self._until = self._until, ""
        text = self._look(self._tail, until)
        self._tail = LINES
        skip = self._same
        lines = []
        for line in text.split("\n"):
            stamp, _, rest = line.partition(" ")
            if not stamp or not stamp[0].isdigit():
                continue
            if stamp == self._last and skip:
                skip -= 1  # the engine repeats lines with the same timestamp
                continue
            lines.append(rest[:LONGEST].removesuffix("\r"))
            self._same = self._same + 1 if stamp == self._last else 1
            self._last = stamp
        self._since = instant(self._last) or self._since
        if until:  # by the engine's own times: this machine's clock may be another
            newest = self._look(1).partition(" ")[0]
            if float(instant(newest) or 0) > float(until):
                self._last, self._same, self._since = newest, 1, instant(newest)
        return lines

    def _look(self, tail: int | None, until: str = "") -> str:
        return self._engine.logs(
            self._container_id,
            tail=tail,
            since=self._since,
            until=until,
            timestamps=True,
            seconds=LOOK,
        )


class Evidence:
    """Which of the wanted patterns the log has shown, and the first unwanted one."""

    def __init__(self, expect: Mapping[str, str], forbid: Mapping[str, str]) -> None:
        self.expect = expect
        self._wanted = {name: LogPattern(pattern) for name, pattern in expect.items()}
        self._unwanted = {name: LogPattern(pattern) for name, pattern in forbid.items()}
        self.seen: dict[str, str] = {}
        self.forbidden: tuple[str, str] | None = None

    def feed(self, line: str) -> None:
        """Read one line of the log."""
        for name, pattern in self._wanted.items():
            if name not in self.seen and pattern.found_in(line):
                self.seen[name] = line
        if self.forbidden is None:
            shown = (
                (name, line) for name, pattern in self._unwanted.items() if pattern.found_in(line)
            )
            self.forbidden = next(shown, None)

    def restart(self) -> None:
        """The program was restarted: forget what the earlier run showed."""
        self.seen.clear()
        self.forbidden = None

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of wanted patterns that no line has matched yet."""
        return tuple(name for name in self._wanted if name not in self.seen)


POLL = 0.25  # seconds between two looks at the container
ASK_AGAIN = 1.0  # seconds between two questions to a server that is not ready
REPEAT = 60.0  # seconds between two lines about a phase that goes on, where there is no live line
REFUSALS = 3  # useless answers after which waiting won't help
SICKNESS = 60.0  # seconds without an answer from the engine, after which the wait fails
RESTARTS = 3  # this many make a loop, whatever the policy allows
# The programs of a container that run before its command; `docker-init` has the words of the first
# in its own.
ENTRY = re.compile(r"^(?!\S*init ).*/opt/envgen/(bin/entrypoint|libexec/record-env)( |$)")
SETTLED = 1.0  # seconds that a program without a health check has to fail at its start
LONG = 10.0  # and has run for, with its entry point, if it has had them: by this machine's clock
STEADY = 1.0  # seconds that a server must live after its answer
LINGER = 3.0  # seconds that the log has after the answer to show what it must
_MODELS = "/v1/models"


@dataclass(frozen=True)
class Awaited:
    """How a container became ready: its answer, the seconds of each phase, what the log showed."""

    answer: Readiness
    phases: dict[str, float] = field(default_factory=dict)
    shown: dict[str, str] = field(default_factory=dict)
    restarts: int = 0
    prompt: str = ""
    container: Container | None = None  # as it was seen last


class Waiter:
    """Waits for a container of ``service``. ``say`` prints a line of progress."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        service: Service,
        url: str,
        say: Callable[[str], None],
        api_key: str = "",
    ) -> None:
        self._engine = engine
        self._name = name
        self._url = url
        self._say = say
        self._ready = service.ready or Ready()
        self._policy = service.restart
        self._serves = service.serves
        self._question: Question | None = None
        port = service.http_port
        self._unasked = (
            f"port {port} is not published"
            if port
            else "no port is known to answer HTTP (ready.port)"
        )
        if url and service.http_port:
            prompt, expected = self._ready.prompt, self._ready.expect_text
            self._question = Question(
                self._ready.model, prompt, expected, api_key, chat_flags(service.argv)
            )
        self.progress = StartProgress(on_end=self._ended)
        self._tells = True  # each phase
        self._evidence = Evidence(self._ready.expect, self._ready.forbid)
        self._first_restarts = self._restarts = 0
        self._ended_with = ""
        self._why = ""
        self._step = _MODELS  # of the question
        self._began = self._last_said = time.monotonic()

    def wait(self, container_id: str, deadline: float, *, already: bool = False) -> Awaited:
        """Wait until it is ready or ``deadline`` (monotonic seconds). StartFailure with the reason.

        ``already``: it was started before, so its phases are over.
        """
        self._tells = not already
        with doing(self._name, f"{self._name}: {DOING[Phase.START]}"):
            return self._wait(container_id, deadline)

    def _wait(self, container_id: str, deadline: float) -> Awaited:
        container = self._look(container_id)
        # A program that exits at once may have been restarted before this first look.
        self._first_restarts = self._restarts = container.restarts if container.running else 0
        reader = LogReader(
            self._engine, container_id, container.started_at, self._ready.timeout.seconds
        )
        asking: Future[Readiness] | None = None
        stable_since: float | None = None
        ask_at = asked_at = missed = 0.0
        refusals = 0
        while True:
            try:
                container = self._look(container_id)
                self._note_restarts(container)
                self._read(reader, container)
                self.report()
            except EngineTimeout:
                # A server that loads 61 GiB can keep the whole machine from answering.
                missed = missed or time.monotonic()
                if time.monotonic() - missed > SICKNESS:
                    raise
                self._in_time(container, deadline)
                continue
            now, missed = time.monotonic(), 0.0
            if container.state != "running" or container.health not in ("", "none", "healthy"):
                stable_since = asking = None
            else:
                # Without a health check, give a program time to fail at its start, once it runs at
                # all.
                if stable_since is None and (self._question or self._begun(container)):
                    old = (
                        not self._tells
                        and time.time() - float(instant(container.started_at) or "inf") > LONG
                    )
                    stable_since = now - SETTLED if old else now
                settled = container.health == "healthy" or (stable_since or now) <= now - SETTLED
                if asking is None and settled and now >= ask_at:
                    asking, asked_at = self._ask(), now
                if asking is not None and wait([asking], POLL).done:
                    answer, asking, ask_at = asking.result(), None, now + ASK_AGAIN
                    if answer.ready:
                        return self._with_evidence(answer, reader, container)
                    refusals += answer.refused
                    if answer.fatal or refusals >= REFUSALS:
                        raise self._failure(container, answer.why, says_all=answer.fatal)
                    self._why = answer.why
                elif asking is not None and self._step != _MODELS:
                    self.progress.answering()
                    self._why = (
                        f"it was asked {now - asked_at:.0f} s ago and has not sent {self._step}"
                    )
            self._in_time(container, deadline)
            if asking is None:
                time.sleep(POLL)

    def _begun(self, container: Container) -> bool:
        """Whether the command itself runs, and not the entry point before it, which can take
        seconds.
        """
        with contextlib.suppress(EngineError):  # the engine's machine may have no `ps`
            return not any(
                ENTRY.match(process.command) for process in self._engine.processes(container.id)
            )
        return True

    def _ask(self) -> Future[Readiness]:
        """The question to the server, asked in the background with its own time-outs."""
        question, self._step = self._question, _MODELS
        if question is None:  # there is nothing to ask
            return in_background(lambda: Readiness(True, unasked=self._unasked))
        return in_background(
            lambda: ask(self._url, question, timeout=3600, on_step=partial(setattr, self, "_step"))
        )

    def _look(self, container_id: str, when: str = "") -> Container:
        """The container. StartFailure if it is gone, has ended or restarts for ever.

        ``when``: for the message, instead of what the server is doing.
        """
        container = self._engine.container(container_id)
        if container is None:
            raise self._failure(None, "its container was removed while it started")
        if container.state in ("exited", "dead"):
            times = (
                f", restarted {counted(container.restarts, 'time')} by Docker"
                if container.restarts
                else ""
            )
            how = f"{container.how_ended} {when or 'while ' + self.progress.words()}{times} {container.error}"
            raise self._failure(container, f"its process {how}")
        if container.state == "paused":
            raise self._failure(container, "it is paused", says_all=True)
        if container.state == "restarting":  # once it runs again, Docker's exit code is 0
            self._ended_with = f", last with {container.exit_code}"
        restarts = container.restarts - self._first_restarts
        if restarts >= RESTARTS:
            why = (
                f"it ended {restarts} times{self._ended_with}; Docker restarts it ({self._policy})"
            )
            raise self._failure(container, why)
        # Docker also calls a container unhealthy that has just ended and is being restarted.
        if container.health == "unhealthy" and container.state == "running":
            raise self._failure(container, f"its health check failed while {self.progress.words()}")
        return container

    def _note_restarts(self, container: Container) -> None:
        if container.restarts > self._restarts:
            self._restarts = container.restarts
            times = counted(container.restarts, "time")
            self._say(
                f"  {self._name}: its process exited and was restarted {times} ({self._policy})"
            )
            self.progress.restart()
            self._evidence.restart()
            self._why = ""

    def _read(self, reader: LogReader, container: Container) -> None:
        for line in reader.new_lines():
            self.progress.feed(line)
            self._evidence.feed(line)
            if Verbosity.on:
                self._say(f"  {self._name} | {log_text(line)}")
        if self._evidence.forbidden is not None:
            name, line = self._evidence.forbidden
            raise self._failure(
                container,
                f"its log shows what ready.forbid.{name} names: {log_text(line)[:200]!r}",
                says_all=True,
            )

    def _with_evidence(self, answer: Readiness, reader: LogReader, container: Container) -> Awaited:
        """After the answer: wait for what the log must show, and see that the program still runs."""
        if not answer.unasked:
            self.progress.answering()
        began = time.monotonic()
        until = began + LINGER
        self._read(reader, container)
        while self._evidence.missing and time.monotonic() < until:
            time.sleep(POLL)
            self._read(reader, container)
        while self._serves and time.monotonic() < began + STEADY:
            time.sleep(POLL)
            with contextlib.suppress(EngineTimeout):
                before, container = container.restarts, self._look(container.id, "after its answer")
                if not container.running or container.restarts > before:
                    raise self._failure(
                        container, f"its process exited after its answer{self._ended_with}"
                    )
        if not self._evidence.missing:
            self.progress.finish()
            shown = {name: log_text(line) for name, line in self._evidence.seen.items()}
            return Awaited(
                answer, self.progress.took(), shown, self._restarts, self._ready.prompt, container
            )
        wanted = "; ".join(
            f"ready.expect.{name}: {self._evidence.expect[name]}" for name in self._evidence.missing
        )
        raise self._failure(
            container, f"it answers, but its log never showed {wanted}", says_all=True
        )

    def _in_time(self, container: Container, deadline: float) -> None:
        if time.monotonic() > deadline:
            state = self._why or f"it is {container.state}, health {container.health or 'unknown'}"
            raise self._failure(
                container, f"not ready in time, still {self.progress.words()}: {state}"
            )

    def _failure(
        self, container: Container | None, reason: str, *, says_all: bool = False
    ) -> StartFailure:
        restarts = container.restarts if container else self._restarts
        seen, missing = dict(self._evidence.seen), self._evidence.missing
        took = self.progress.took()
        return StartFailure(
            reason.strip(), container, took, seen, missing, restarts, says_all=says_all
        )

    def _ended(self, phase: Phase, seconds: float, what: str) -> None:
        """Print a phase that has ended."""
        if self._tells:
            self._say(step_line(f"{self._name}: {phase.value:<7}", seconds, what))
            self._last_said = time.monotonic()

    def report(self) -> None:
        """Show what it does: on a terminal in the live line, elsewhere in a line now and then."""
        step = "" if self._step == _MODELS else f", asked for {self._step}"
        now_doing(self._name, f"{self._name}: {self.progress.words()}{step}", self.progress.share)
        now = time.monotonic()
        if not is_terminal() and now - self._last_said >= REPEAT:
            self._last_said = now
            self._say(f"  {self._name}: {self.progress.words()}{step}, {now - self._began:.0f} s")
