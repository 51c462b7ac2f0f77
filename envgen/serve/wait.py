"""Waiting for a container to answer: its log, its phases and limits, its state, and the question
itself.

The question is asked in a thread, so that a server that hangs in its answer is watched like one
that loads.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from envgen.engine.client import Engine
from envgen.engine.process import in_background
from envgen.engine.values import Container
from envgen.errors import EngineError
from envgen.live import doing, now_doing
from envgen.logpattern import LogPattern
from envgen.profile.flags import takes_no_prompt
from envgen.profile.service import Ready, Service
from envgen.serve.chat import chat_flags
from envgen.serve.ended import StartFailure, log_text
from envgen.serve.follow import POLL, Event, Follower, Kind
from envgen.serve.phases import Phase, StartProgress
from envgen.serve.readiness import Question, Readiness, ask
from envgen.text import Verbosity, counted, instant, is_terminal, step_line


class Evidence:
    """Which of the wanted patterns the log has shown, and the first unwanted one."""

    def __init__(self, expect: Mapping[str, str], forbid: Mapping[str, str]) -> None:
        self.expect = expect
        self._wanted = _patterns(expect)
        self._unwanted = _patterns(forbid)
        self.seen: dict[str, str] = {}
        self.forbidden: tuple[str, str] | None = None

    def feed(self, line: str) -> None:
        """Read one line of the log."""
        for name, pattern in self._wanted.items():
            if name not in self.seen and pattern.found_in(line):
                self.seen[name] = line
        for name, pattern in self._unwanted.items():
            if self.forbidden is None and pattern.found_in(line):
                self.forbidden = name, line

    def restart(self) -> None:
        """The program was restarted: forget what the earlier run showed."""
        self.seen.clear()
        self.forbidden = None

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of wanted patterns that no line has matched yet."""
        return tuple(name for name in self._wanted if name not in self.seen)


def _patterns(texts: Mapping[str, str]) -> dict[str, LogPattern]:
    return {name: LogPattern(text) for name, text in texts.items()}


SLOW = 1.0  # seconds between two looks at a container that ran before
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
class ReadyResult:
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
        connect: Callable[[], Engine] | None = None,
    ) -> None:
        self._engine = engine
        self._connect = connect
        self._name = name
        self._url = url
        self._say = say
        self._ready = service.ready or Ready()
        self._policy = service.restart
        self._serves = service.serves
        port = service.http_port
        self._question: Question | None = None
        self._unasked = "no port is known to answer HTTP (ready.port)"
        if port:
            self._unasked = f"port {port} is not published"
        if url and port:
            silent = takes_no_prompt(service.flag)
            self._question = Question(
                self._ready.model,
                None if silent else self._ready.prompt,
                None if silent else self._ready.expect_text,
                api_key,
                chat_flags(service.argv),
            )
        self.progress = StartProgress(on_end=self._ended)
        self._tells = True  # each phase
        self._pause = POLL
        self._evidence = Evidence(self._ready.expect, self._ready.forbid)
        self._first_restarts: int | None = None
        self._restarts = 0
        self._ended_with = ""
        self._why = ""
        self._step = _MODELS  # of the question
        self._asking: Future[Readiness] | None = None
        self._stable_since: float | None = None
        self._ask_at = self._asked_at = 0.0
        self._refusals = 0
        self._answer: Readiness | None = None
        self._answered_at = 0.0
        self._answered_restarts = 0
        self._old = False  # it ran before, and for long
        self._began = self._last_said = time.monotonic()

    def wait(self, container_id: str, deadline: float, *, already: bool = False) -> ReadyResult:
        """Wait until it is ready or ``deadline`` (monotonic seconds). StartFailure with the reason.

        ``already``: it was started before, so its phases are over.
        """
        self._tells = not already
        self._pause = SLOW if already else POLL
        window = self._ready.timeout.seconds
        follower = Follower(self._engine, container_id, window=window, connect=self._connect)
        last = None
        with doing(self._name, f"{self._name}: starting"):
            for event in follower.events():
                last = event.container or last
                awaited = self._take(event, follower)
                if awaited is not None:
                    return awaited
                if event.kind in (Kind.RUNNING, Kind.LOST):
                    self._in_time(last, deadline)
        raise AssertionError("the events have no end")

    def _take(self, event: Event, follower: Follower) -> ReadyResult | None:
        """What an event means. How it became ready, once it is."""
        container = event.container
        if event.kind is Kind.LOST and event.error and event.seconds > SICKNESS:
            # A server that loads 61 GiB can keep the whole machine from answering.
            raise event.error
        if event.kind is Kind.ENDED:
            raise self._end(container)
        if container is None or event.kind is Kind.BACK:
            return None
        if self._first_restarts is None:
            self._first_look(container)
        if event.kind is Kind.RESTARTED:
            self._note_restart(container)
        elif event.kind is Kind.LINE:
            self._read(event.line, container)
        elif event.kind is Kind.RUNNING:
            self._check(container)
            if self.progress.may_have_built:
                self.progress.see(self._commands(container))
            self.report()
            if self._answer is not None:
                return self._when_steady(self._answer, container)
            self._question_it(container)
            follower.pause = 0.0 if self._asking is not None else self._pause
            if self._answer is not None and self._old:
                return self._when_steady(self._answer, container)
        return None

    def _first_look(self, container: Container) -> None:
        # A program that exits at once may have been restarted before this first look.
        self._first_restarts = self._restarts = container.restarts if container.running else 0
        started = float(instant(container.started_at) or "inf")
        self._old = not self._tells and time.time() - started > LONG

    def _question_it(self, container: Container) -> None:
        """Ask the server, if it had its time to fail; note its answer, if there is one."""
        now = time.monotonic()
        if container.state != "running" or container.health not in ("", "none", "healthy"):
            self._stable_since = self._asking = None
            return
        # Without a health check, give a program time to fail at its start, once it runs at all.
        if self._stable_since is None and (self._question or self._begun(container)):
            self._stable_since = now - SETTLED if self._old else now
        settled = self._stable_since is not None and self._stable_since <= now - SETTLED
        if self._asking is None and (settled or container.health == "healthy"):
            if now < self._ask_at:
                return
            self._asking = self._ask()
            self._asked_at = now
        if self._asking is None:
            return
        if not wait([self._asking], self._pause).done:
            if self._step != _MODELS:
                self.progress.answering()
                ago = f"{now - self._asked_at:.0f} s ago"
                self._why = f"it was asked {ago} and has not sent {self._step}"
            return
        answer = self._asking.result()
        self._asking = None
        self._ask_at = now + ASK_AGAIN
        if answer.ready:
            self._answer = answer
            self._answered_at = time.monotonic()
            self._answered_restarts = container.restarts
            if not answer.unasked:
                self.progress.answering()
            return
        self._refusals += answer.refused
        if answer.fatal or self._refusals >= REFUSALS:
            raise self._failure(container, answer.why, says_all=answer.fatal)
        self._why = answer.why

    def _begun(self, container: Container) -> bool:
        """Whether the command itself runs, and not the entry point before it, which can take
        seconds.
        """
        return not any(map(ENTRY.match, self._commands(container)))

    def _commands(self, container: Container) -> list[str]:
        """The commands that run in it; none where the engine's machine has no `ps`."""
        with suppress(EngineError):
            return [process.command for process in self._engine.processes(container.id)]
        return []

    def _ask(self) -> Future[Readiness]:
        """The question to the server, asked in the background with its own time-outs."""
        question = self._question
        self._step = _MODELS
        if question is None:  # there is nothing to ask
            return in_background(lambda: Readiness(True, unasked=self._unasked))
        return in_background(
            lambda: ask(self._url, question, timeout=3600, on_step=partial(setattr, self, "_step"))
        )

    @property
    def _when(self) -> str:
        return "after its answer" if self._answer else f"while {self.progress.words()}"

    def _end(self, container: Container | None) -> StartFailure:
        """The failure of a container that is gone or has ended."""
        if container is None:
            return self._failure(None, "its container was removed while it started")
        how = f"its process {container.how_ended} {self._when}"
        if container.restarts:
            how += f", restarted {counted(container.restarts, 'time')} by Docker"
        return self._failure(container, f"{how} {container.error}")

    def _check(self, container: Container) -> None:
        """StartFailure if it is paused, restarts without end, or is unhealthy."""
        if container.state == "paused":
            raise self._failure(container, "it is paused", says_all=True)
        if container.state == "restarting":  # once it runs again, Docker's exit code is 0
            self._ended_with = f", last with {container.exit_code}"
        restarts = container.restarts - (self._first_restarts or 0)
        if restarts >= RESTARTS:
            ended = f"it ended {restarts} times{self._ended_with}"
            raise self._failure(container, f"{ended}; Docker restarts it ({self._policy})")
        # Docker also calls a container unhealthy that has just ended and is being restarted.
        if container.health == "unhealthy" and container.state == "running":
            raise self._failure(container, f"its health check failed {self._when}")

    def _note_restart(self, container: Container) -> None:
        self._restarts = container.restarts
        times = counted(container.restarts, "time")
        what = f"its process exited and was restarted {times} ({self._policy})"
        self._say(f"  {self._name}: {what}")
        self.progress.restart()
        self._evidence.restart()
        self._why = ""

    def _read(self, line: str, container: Container) -> None:
        self.progress.feed(line)
        self._evidence.feed(line)
        if Verbosity.on:
            self._say(f"  {self._name} | {log_text(line)}")
        if self._evidence.forbidden is not None:
            name, found = self._evidence.forbidden
            reason = f"its log matches ready.forbid.{name}: {log_text(found)[:200]!r}"
            raise self._failure(container, reason, says_all=True)

    def _when_steady(self, answer: Readiness, container: Container) -> ReadyResult | None:
        """How it became ready, once its log has shown what it must, and its program runs on."""
        if container.state == "restarting" or container.restarts > self._answered_restarts:
            reason = f"its process exited after its answer{self._ended_with}"
            raise self._failure(container, reason)
        passed = time.monotonic() - self._answered_at
        if self._evidence.missing and passed < LINGER:
            return None
        if self._serves and passed < STEADY and not self._old:
            return None
        if not self._evidence.missing:
            self.progress.finish()
            shown = {name: log_text(line) for name, line in self._evidence.seen.items()}
            took = self.progress.took()
            prompt = self._ready.prompt
            return ReadyResult(answer, took, shown, self._restarts, prompt, container)
        names = self._evidence.missing
        wanted = "; ".join(f"ready.expect.{name}: {self._evidence.expect[name]}" for name in names)
        reason = f"it answers, but its log never showed {wanted}"
        raise self._failure(container, reason, says_all=True)

    def _in_time(self, container: Container | None, deadline: float) -> None:
        if time.monotonic() <= deadline or self._answer is not None:
            return
        state = self._why or "the engine does not answer"
        if container is not None and not self._why:
            state = f"it is {container.state}, health {container.health or 'unknown'}"
        reason = f"not ready in time, still {self.progress.words()}: {state}"
        raise self._failure(container, reason)

    def _failure(
        self, container: Container | None, reason: str, *, says_all: bool = False
    ) -> StartFailure:
        restarts = container.restarts if container else self._restarts
        seen = dict(self._evidence.seen)
        missing = self._evidence.missing
        took = self.progress.took()
        return StartFailure(
            reason.strip(), container, took, seen, missing, restarts, says_all=says_all
        )

    def _ended(self, phase: Phase, seconds: float, what: str) -> None:
        """Print a phase that has ended."""
        if self._tells:
            self._say(step_line(f"{self._name}: {phase.value:<10}", seconds, what))
            self._last_said = time.monotonic()

    def report(self) -> None:
        """Show what it does: on a terminal in the live line, elsewhere in a line now and then."""
        step = "" if self._step == _MODELS else f", asked for {self._step}"
        now_doing(self._name, f"{self._name}: {self.progress.words()}{step}", self.progress.share)
        now = time.monotonic()
        if not is_terminal() and now - self._last_said >= REPEAT:
            self._last_said = now
            self._say(f"  {self._name}: {self.progress.words()}{step}, {now - self._began:.0f} s")
