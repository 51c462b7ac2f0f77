"""A running service as events: the one loop over a container, its log and its engine.

A look at the container is an event, and so is each line of its log, a restart and the end. An
engine that does not answer is asked again, over a new connection: how long that may last is for the
caller to say, who gets an event for each failed look.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from threading import Lock

from envgen.engine.client import Engine
from envgen.engine.values import Container
from envgen.errors import EngineError
from envgen.text import instant

POLL = 0.25  # seconds between two looks at the container
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
        self.engine = engine
        self._container_id = container_id
        self._since = instant(since)
        self._until = ""
        if self._since and window is not None:
            self._until = f"{float(self._since) + window:.9f}"
        self._last = ""  # the timestamp of the last line returned
        self._tail: int | None = None  # the first look sees all
        self._same = 0  # how many lines had that timestamp

    def new_lines(self) -> list[str]:
        """The lines since the last call."""
        until = self._until
        self._until = ""
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
                self._last = newest
                self._same = 1
                self._since = instant(newest)
        return lines

    def _look(self, tail: int | None, until: str = "") -> str:
        return self.engine.logs(
            self._container_id,
            tail=tail,
            since=self._since,
            until=until,
            timestamps=True,
            seconds=LOOK,
        )


class Kind(Enum):
    """What has happened."""

    RUNNING = auto()  # or paused, or between two runs
    RESTARTED = auto()  # Docker has started its program again
    LINE = auto()  # of its log
    ENDED = auto()  # ``container`` is None if it was removed
    LOST = auto()  # the engine does not answer
    BACK = auto()  # it answers again


@dataclass(frozen=True)
class Event:
    """``seconds``: since the engine answered last. ``error``: why it does not."""

    kind: Kind
    container: Container | None = None
    line: str = ""
    seconds: float = 0.0
    error: EngineError | None = None


@dataclass(eq=False)
class Follower:
    """Follows the container ``container_id``.

    ``reads``: seconds between two looks at its log; None: it is not read. ``window``: of a log that
    began long ago, see LogReader. ``connect``: makes a new connection to the engine. ``pause``:
    seconds between two looks, which may be changed at any time.
    """

    engine: Engine
    container_id: str
    pause: float = POLL
    reads: float | None = 0.0
    window: float | None = None
    connect: Callable[[], Engine] | None = None
    restarts: int | None = None  # the number that was seen; None before the first look
    answered: float = field(default_factory=time.monotonic)  # when the engine answered last
    _reader: LogReader | None = None
    _read_at: float = 0.0
    _reading: Lock = field(default_factory=Lock)  # two threads may ask for new lines

    def follow(self, container_id: str) -> None:
        """Go on with another container."""
        self.container_id = container_id
        self.restarts = None
        self._reader = None

    def events(self) -> Iterator[Event]:
        """The events, without an end: the caller stops."""
        lost = False
        while True:
            try:
                container = self.engine.container(self.container_id)
                lines = self._lines(container)
            except EngineError as error:
                lost = True
                yield Event(Kind.LOST, seconds=time.monotonic() - self.answered, error=error)
                self._reconnect()
                time.sleep(max(self.pause, POLL))
            else:
                silent = time.monotonic() - self.answered
                self.answered = time.monotonic()
                if lost:
                    lost = False
                    yield Event(Kind.BACK, container, seconds=silent)
                yield from self._of(container, lines)
                if self.pause:
                    time.sleep(self.pause)

    def _of(self, container: Container | None, lines: list[str]) -> Iterator[Event]:
        if container is None or container.state in ("exited", "dead"):
            yield Event(Kind.ENDED, container)
            return
        restarts = self.restarts
        self.restarts = container.restarts
        if restarts is not None and container.restarts > restarts:
            yield Event(Kind.RESTARTED, container)
        for line in lines:
            yield Event(Kind.LINE, container, line)
        yield Event(Kind.RUNNING, container)

    def _lines(self, container: Container | None) -> list[str]:
        if container is None or self.reads is None:
            return []
        if time.monotonic() < self._read_at:
            return []
        self._read_at = time.monotonic() + self.reads
        return self.new_lines(container)

    def new_lines(self, container: Container) -> list[str]:
        """The lines of its log since the last call."""
        with self._reading:
            return self._read(container)

    def _read(self, container: Container) -> list[str]:
        if self._reader is None:
            self._reader = LogReader(self.engine, container.id, container.started_at, self.window)
        return self._reader.new_lines()

    def _reconnect(self) -> None:
        if self.connect is None:
            return
        with suppress(EngineError):
            self.engine = self.connect()
            if self._reader is not None:
                self._reader.engine = self.engine
