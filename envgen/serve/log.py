"""A container's log, read as it grows; and what a profile wants to see in it, or not."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from envgen.engine.client import Engine
from envgen.engine.values import Container
from envgen.errors import EngineError
from envgen.logpattern import LogPattern
from envgen.redact import redact_secrets
from envgen.text import counted, instant, visible


def log_text(line: str) -> str:
    """A line of a container's log, fit for the user's terminal: no secrets, nothing that steers."""
    return visible(redact_secrets(line))


# Of what came since the last look, four a second: a program that writes more loses its oldest lines. Without a number
# the engine would read the whole log from its beginning at each look.
LINES = 5000
LONGEST = 8192  # characters of a line; what a server says about itself is shorter


class LogReader:
    """The lines of a container's log from ``since`` on (an instant of the engine), each once.

    Of one that has run for longer than ``window`` seconds: those of its first ``window`` seconds, then new ones. What
    a server says about itself is at the beginning, and days of requests would fill the memory.
    """

    def __init__(
        self,
        engine: Engine,
        container_id: str,
        since: str = "",
        window: float | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._engine = engine
        self._container_id = container_id
        self._since = instant(since)
        self._now = now
        old = self._since and window is not None and now() - float(self._since) > window
        self._until = f"{float(self._since) + (window or 0):.9f}" if old else ""
        self._last = ""  # the stamp of the last line that was handed out
        self._tail: int | None = None  # the first look sees all
        self._same = 0  # how many lines with that very stamp

    def new_lines(self) -> list[str]:
        """What was written since the last call."""
        until, self._until = self._until, ""
        text = self._engine.logs(self._container_id, tail=self._tail, since=self._since, until=until, timestamps=True)
        self._tail = LINES
        skip = self._same
        lines = []
        for line in text.split("\n"):
            stamp, _, rest = line.partition(" ")
            if not stamp or not stamp[0].isdigit():
                continue
            if stamp == self._last and skip:
                skip -= 1  # the engine gives what was written at the very instant once more
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
        """Take in one line of the log."""
        for name, pattern in self._wanted.items():
            if name not in self.seen and pattern.found_in(line):
                self.seen[name] = line
        if self.forbidden is None:
            name_ = next((name for name, pattern in self._unwanted.items() if pattern.found_in(line)), None)
            self.forbidden = (name_, line) if name_ is not None else None

    def restart(self) -> None:
        """The program was started again: what an earlier run has shown counts no more."""
        self.seen.clear()
        self.forbidden = None

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of wanted patterns that no line has matched yet."""
        return tuple(name for name in self._wanted if name not in self.seen)


_LINES = 20
_PATIENCE = 5.0  # seconds; the port closes before the program has ended


@dataclass(frozen=True)
class LastWords:
    """``container`` is None when it is gone, or when the engine could not be asked (``told`` says so)."""

    container: Container | None
    told: str
    lines: tuple[str, ...] = ()


def last_words(engine: Engine, container_id: str) -> LastWords:
    """Its state in a few words, and its last lines. It gets some seconds to end, for its port closes before that."""
    try:
        container = _settled(engine, container_id)
        if container is None:
            return LastWords(None, "its container is gone")
        lines = tuple(log_text(line) for line in engine.logs(container_id, tail=_LINES).splitlines())
    except EngineError as error:
        return LastWords(None, str(error))
    return LastWords(container, f"{container.name}: {_state(container)}", lines)


def _settled(engine: Engine, container_id: str) -> Container | None:
    deadline = time.monotonic() + _PATIENCE
    while True:
        container = engine.container(container_id)
        if container is None or container.state != "running" or time.monotonic() > deadline:
            return container
        time.sleep(0.25)


def _state(container: Container) -> str:
    if container.state == "running":
        again = f", restarted {counted(container.restarts, 'time')}" if container.restarts else ""
        return f"it still runs{again}, but does not answer"
    if container.state in ("paused", "restarting"):
        return container.state
    reason = "killed because memory ran out" if container.oom_killed else f"exit code {container.exit_code}"
    if container.exit_code == 137 and not container.oom_killed:
        reason += " (killed from outside, or by the kernel because memory ran out)"
    return f"{container.state}, {reason}"
