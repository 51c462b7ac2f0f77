"""Waiting for a container to answer: its log, its phases and limits, its state, and the question itself.

The question is asked in a thread, so that a server that hangs in its answer is watched like one that loads.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum

from envgen.engine.client import Engine
from envgen.engine.process import in_background
from envgen.engine.values import Container
from envgen.errors import EngineTimeout
from envgen.live import doing, now_doing
from envgen.logpattern import LogPattern
from envgen.profile.model import Phases, Ready, Service
from envgen.redact import redact_secrets
from envgen.serve import listener
from envgen.serve.chat import chat_flags
from envgen.serve.readiness import Question, Readiness, ask
from envgen.text import counted, instant, plain_text, visible


def log_text(line: str) -> str:
    """A line of a container's log, safe for a terminal: no secrets, no colours, no control characters."""
    return visible(redact_secrets(plain_text(line)))


# Lines per look: a program that writes more loses its oldest lines. Without a number, the engine would read the whole
# log at each look.
LINES = 5000
LONGEST = 8192  # characters of a line; what a server says about itself is shorter
LOOK = 3.0  # seconds for one look: a program that floods its log must not block everything else


class LogReader:
    """The lines of a container's log from ``since`` on (an instant of the engine), each once.

    Of one that has run for longer than ``window`` seconds: those of its first ``window`` seconds, then new ones. What
    a server logs about itself is at the beginning, and days of requests would fill the memory.
    """

    def __init__(
        self,
        engine: Engine,
        container_id: str,
        since: str = "",
        window: float | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._engine, self._container_id, self._now = engine, container_id, now
        self._since = instant(since)
        old = self._since and window is not None and now() - float(self._since) > window
        self._until = f"{float(self._since) + (window or 0):.9f}" if old else ""
        self._last = ""  # the timestamp of the last line returned
        self._tail: int | None = None  # the first look sees all
        self._same = 0  # how many lines had that timestamp

    def new_lines(self) -> list[str]:
        """The lines since the last call."""
        until, self._until = self._until, ""
        text = self._engine.logs(
            self._container_id, tail=self._tail, since=self._since, until=until, timestamps=True, seconds=LOOK
        )
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
        self._since = f"{self._now():.9f}" if until else instant(self._last) or self._since
        return lines


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
            shown = ((name, line) for name, pattern in self._unwanted.items() if pattern.found_in(line))
            self.forbidden = next(shown, None)

    def restart(self) -> None:
        """The program was restarted: forget what the earlier run showed."""
        self.seen.clear()
        self.forbidden = None

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of wanted patterns that no line has matched yet."""
        return tuple(name for name in self._wanted if name not in self.seen)


BY_ITSELF = 75  # of docker/runtime/libexec/server: the server ended with 0, and Docker had not asked it to stop


def how_ended(container: Container) -> str:
    """How a container ended, as a continuation of "its process"."""
    if container.oom_killed:
        return "was killed because memory ran out"
    return f"exited with code {own_code(container)}"


def own_code(container: Container) -> int:
    """The exit code of a container's program."""
    return 0 if container.server and container.exit_code == BY_ITSELF else container.exit_code


class Phase(Enum):
    START = "start"
    ARGUMENTS = "arguments"  # only of a program that refuses them
    WEIGHTS = "weights"
    COMPILE = "compile"
    ANSWER = "answer"


# What the server is doing, as a continuation of "serve: ".
DOING: Mapping[Phase, str] = {
    Phase.START: "starting",
    Phase.ARGUMENTS: "reading its arguments",
    Phase.WEIGHTS: "loading weights",
    Phase.COMPILE: "compiling",
    Phase.ANSWER: "waiting for its first answer",
}

_Detail = Callable[["re.Match[str]"], str]
# (pattern of a line, its phase (None: any), the progress that it shows)
PHASE_LINES: tuple[tuple[str, Phase | None, _Detail], ...] = (
    (r"Starting to load model|Loading drafter model", Phase.WEIGHTS, lambda _: ""),
    (r"Loading .*?(\d+)% Completed", Phase.WEIGHTS, lambda found: f"{found[1]} %"),
    (r"Loading weights took ([\d.]+) seconds", Phase.COMPILE, lambda found: f"weights took {found[1]} s"),
    (r"Model loading took", Phase.COMPILE, lambda _: ""),
    (r"Capturing CUDA graphs.*?(\d+)%", Phase.COMPILE, lambda found: f"CUDA graphs {found[1]} %"),
    (r"Graph capturing finished", Phase.COMPILE, lambda _: "CUDA graphs are captured"),
    (r"Dynamo bytecode transform|Compiling a graph|torch\.compile takes", Phase.COMPILE, lambda _: "torch.compile"),
    # What follows this line is logged only when it has ended.
    (r"Initial profiling/warmup run took", Phase.COMPILE, lambda _: "Triton kernels and CUDA graphs"),
    (r"Warming up (FlashInfer|model|kernel)|[Aa]utotun", Phase.COMPILE, lambda _: "warming up"),
    (r"flashinfer\.jit: Building JIT module (\w{1,80})", None, lambda found: f"nvcc compiles FlashInfer's {found[1]}"),
    (
        r"init engine \(.*took ([\d.]+) s",
        Phase.COMPILE,
        lambda found: f"the engine took {found[1]} s; starting the API server",
    ),
    # ninja's own lines, with FLASHINFER_JIT_VERBOSE=1; a JIT build may come in any phase.
    (r"^\[(\d+)/(\d+)\] .*(nvcc|c\+\+|g\+\+|cuda)", None, lambda found: f"JIT: {found[1]} of {found[2]} files"),
    (r"flashinfer\.jit: (.{1,80})", None, lambda found: f"JIT: {found[1]}"),
)
# vLLM puts "(EngineCore pid=69) " in front of the lines of its processes.
_SPEAKER = re.compile(r"^\(\w+ pid=\d+\) ")
_REFUSED = re.compile(r"^[\w./ -]{1,80}: error: ")  # the last line of argparse, after the usage


class StartProgress:
    """The phases of one start. ``clock`` gives seconds; ``limits`` are the profile's."""

    def __init__(self, limits: Phases, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits, self._clock = limits, clock
        self.restart()

    def restart(self) -> None:
        """The program was restarted: begin again."""
        self.phase = Phase.START
        self.detail = ""
        self._in_usage = False
        self._since = self._detail_since = self._clock()
        self._spent: dict[Phase, float] = {}

    def feed(self, line: str) -> None:
        """Read one line of the log."""
        line = _SPEAKER.sub("", line.rsplit("\r", 1)[-1])
        if line.startswith("usage: ") or (self._in_usage and line.startswith(" ")):
            self._in_usage = True  # it lists flags: --enable-flashinfer-autotune
            return
        if self._in_usage and _REFUSED.match(line):
            self._enter(Phase.ARGUMENTS)
        self._in_usage = False
        for pattern, phase, detail in PHASE_LINES:
            if found := re.search(pattern, line[:2000]):
                if phase is not None and self.phase is not Phase.ANSWER:
                    self._enter(phase)
                self._note(detail(found) or self.detail)
                return

    def answering(self) -> None:
        """The port answers: now the completion is awaited."""
        self._enter(Phase.ANSWER)

    def _enter(self, phase: Phase) -> None:
        if phase is not self.phase:
            self._spent = self._so_far()
            self.phase, self._since = phase, self._clock()
            self.detail, self._detail_since = "", self._since

    def _note(self, detail: str) -> None:
        if detail != self.detail:
            self.detail, self._detail_since = detail, self._clock()

    def _so_far(self) -> dict[Phase, float]:
        spent = self._spent.get(self.phase, 0.0) + self._clock() - self._since
        return {**self._spent, self.phase: spent}

    def took(self) -> dict[str, float]:
        """Seconds spent in each phase so far, in the order of a start."""
        spent = self._so_far()
        return {phase.value: round(spent[phase], 1) for phase in Phase if phase in spent}

    def words(self) -> str:
        """What the server is doing."""
        return DOING[self.phase] + (f", {self.detail}" if self.detail else "")

    @property
    def seconds(self) -> float:
        """Seconds since ``words`` last changed."""
        return self._clock() - self._detail_since

    def overdue(self) -> str:
        """A sentence if the phase exceeds its limit, else ""."""
        limit = getattr(self._limits, self.phase.value, None)
        if limit is None or self.took()[self.phase.value] <= limit.seconds:
            return ""
        return f"{self.words()} for more than {limit.seconds} s (ready.phases.{self.phase.value})"


POLL = 0.25  # seconds between two looks at the container
ASK_AGAIN = 1.0  # seconds between two questions to a server that is not ready
REPEAT = 10.0  # seconds after which an unchanged state is printed again
REFUSALS = 3  # useless answers after which waiting won't help
SICKNESS = 60.0  # seconds without an answer from the engine, after which the wait fails
RESTARTS = 3  # this many make a loop, whatever the policy allows
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


@dataclass(frozen=True)
class StartFailure:
    """Why a service is not ready. ``container`` is None if none was created or it is gone."""

    reason: str
    container: Container | None = None
    phases: dict[str, float] = field(default_factory=dict)
    shown: dict[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    restarts: int = 0
    lines: tuple[str, ...] = ()  # of another program, such as Compose
    says_all: bool = False  # the service runs and answers wrongly: its log has no deeper cause
    hint: str = ""  # what to do, if no cause is known


class NotReady(Exception):
    """The service failed, with everything that was seen."""

    def __init__(self, failure: StartFailure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


class Waiter:
    """Waits for a container of ``service``. ``say`` prints a line of progress."""

    def __init__(
        self, engine: Engine, name: str, service: Service, url: str, say: Callable[[str], None], api_key: str = "",
        python: str = "python3",
    ) -> None:  # fmt: skip
        self._engine, self._name, self._url, self._say, self._python = engine, name, url, say, python
        self._port = listener.port_on_host(service)
        self._ready = service.ready or Ready()
        self._policy = service.restart
        self._serves = service.serves
        self._question: Question | None = None
        port = service.http_port
        self._unasked = f"port {port} is not published" if port else "no port is known to answer HTTP (ready.port)"
        if url and service.http_port:
            prompt, expected = self._ready.prompt, self._ready.expect_text
            self._question = Question(self._ready.model, prompt, expected, api_key, chat_flags(service.argv))
        self.progress = StartProgress(self._ready.phases)
        self._evidence = Evidence(self._ready.expect, self._ready.forbid)
        self._first_restarts = self._restarts = 0
        self._ended_with = ""
        self._why = ""
        self._step = _MODELS  # of the question
        self._last_shown = ("", 0.0)
        self._last_line = ""
        self._began = time.monotonic()

    def wait(self, container_id: str, deadline: float) -> Awaited:
        """Wait until it is ready or ``deadline`` (monotonic seconds). NotReady with the reason."""
        with doing(self._name, f"{self._name}: {DOING[Phase.START]}"):
            return self._wait(container_id, deadline)

    def _wait(self, container_id: str, deadline: float) -> Awaited:
        container = self._look(container_id)
        # A program that exits at once may have been restarted before this first look.
        self._first_restarts = self._restarts = container.restarts if container.running else 0
        reader = LogReader(self._engine, container_id, container.started_at, self._ready.timeout.seconds)
        asking: Future[Readiness] | None = None
        stable_since: float | None = None
        ask_at = asked_at = missed = 0.0
        refusals = 0
        while True:
            try:
                container = self._look(container_id)
                self._note_restarts(container)
                self._read(reader, container)
                self.report(container)
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
                # Without a health check, give a program time to fail at its start.
                stable_since = stable_since or now
                settled = container.health == "healthy" or now - stable_since >= 1.0
                if asking is None and settled and now >= ask_at:
                    asking, asked_at = self._ask(), now
                if asking is not None and asking.done():
                    answer, asking, ask_at = asking.result(), None, now + ASK_AGAIN
                    if answer.ready and (stranger := self._stranger(container)):
                        answer = Readiness(False, stranger)
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

    def _ask(self) -> Future[Readiness]:
        """The question to the server, asked in the background with its own time-outs."""
        question, self._step = self._question, _MODELS
        if question is None:  # there is nothing to ask
            return in_background(lambda: Readiness(True, unasked=self._unasked))
        return in_background(lambda: ask(self._url, question, timeout=3600, on_step=self._on_step))

    def _stranger(self, container: Container) -> str:
        """Why the answer is not the container's, on the host's network; "" if it is."""
        return "" if self._port is None else listener.stranger(self._engine, container, self._python, self._port)

    def _on_step(self, step: str) -> None:
        self._step = step

    def _look(self, container_id: str, when: str = "") -> Container:
        """The container. NotReady if it is gone, has ended or restarts for ever.

        ``when``: for the message, instead of what the server is doing.
        """
        container = self._engine.container(container_id)
        if container is None:
            raise self._failure(None, "its container was removed while it started")
        if container.state in ("exited", "dead"):
            times = f", restarted {counted(container.restarts, 'time')} by Docker" if container.restarts else ""
            how = f"{how_ended(container)} {when or 'while ' + self.progress.words()}{times} {container.error}"
            raise self._failure(container, f"its process {how}")
        if container.state == "paused":
            raise self._failure(container, "it is paused", says_all=True)
        if container.state == "restarting":  # once it runs again, Docker's exit code is 0
            self._ended_with = f", last with {container.exit_code}"
        restarts = container.restarts - self._first_restarts
        if restarts >= RESTARTS:
            why = f"it ended {restarts} times{self._ended_with}; Docker restarts it ({self._policy})"
            raise self._failure(container, why)
        # Docker also calls a container unhealthy that has just ended and is being restarted.
        if container.health == "unhealthy" and container.state == "running":
            raise self._failure(container, f"its health check failed while {self.progress.words()}")
        return container

    def _note_restarts(self, container: Container) -> None:
        if container.restarts > self._restarts:
            self._restarts = container.restarts
            times = counted(container.restarts, "time")
            self._say(f"  {self._name}: its process exited and was restarted {times} ({self._policy})")
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
                    raise self._failure(container, f"its process exited after its answer{self._ended_with}")
        if not self._evidence.missing:
            shown = {name: log_text(line) for name, line in self._evidence.seen.items()}
            return Awaited(answer, self.progress.took(), shown, self._restarts, self._ready.prompt)
        wanted = "; ".join(f"ready.expect.{name}: {self._evidence.expect[name]}" for name in self._evidence.missing)
        raise self._failure(container, f"it answers, but its log never showed {wanted}", says_all=True)

    def _in_time(self, container: Container, deadline: float) -> None:
        if late := self.progress.overdue():
            raise self._failure(container, f"{late}" + (f": {self._why}" if self._why else ""))
        if time.monotonic() > deadline:
            state = self._why or f"it is {container.state}, health {container.health or 'unknown'}"
            raise self._failure(container, f"not ready in time, still {self.progress.words()}: {state}")

    def _failure(self, container: Container | None, reason: str, *, says_all: bool = False) -> NotReady:
        restarts = container.restarts if container else self._restarts
        seen, missing = dict(self._evidence.seen), self._evidence.missing
        return NotReady(
            StartFailure(reason.strip(), container, self.progress.took(), seen, missing, restarts, says_all=says_all)
        )

    def report(self, container: Container) -> None:
        """Print each change while waiting, and now and then that nothing has changed."""
        health = f" ({container.health})" if container.health not in ("", "none") else ""
        started = container.state == "running" and self.progress.words() == DOING[Phase.START]
        state = container.state + health + ("" if started else f", {self.progress.words()}")
        step = "" if self._step == _MODELS else f", asked for {self._step}"
        now_doing(self._name, f"{self._name}: {self.progress.words()}{step}")
        now = time.monotonic()
        if state == self._last_shown[0] and now - self._last_shown[1] < REPEAT:
            return
        self._last_shown = (state, now)
        spent = "" if started or self.progress.seconds < 1 else f" for {self.progress.seconds:.0f} s"
        line = log_text(self._engine.logs(container.id, tail=1).strip())[:100]
        shown = f" | {line}" if line and line != self._last_line else ""
        self._last_line = line
        self._say(f"  {self._name}: {state}{spent}, {now - self._began:.0f} s{shown}")
