"""What a build shows while it runs: a line a finished step; on a terminal also the running ones with their time."""

from __future__ import annotations

import re
import shutil
import sys
import time
from typing import TextIO

from envgen.engine.rawjson import Done, Event, Line, Note, Started, Status, Step
from envgen.text import shorten

_WRAPPERS = re.compile(r"((sh|python3) )?/run/envgen/(with-(network|index) )?(?=\S)")
HEARTBEAT = 30.0  # seconds of silence after which a plain display shows that a step still runs


class PlainDisplay:
    """For pipes and logs: lines only, never rewritten."""

    def __init__(self, out: TextIO | None = None) -> None:
        self.out = out or sys.stderr
        self.total = 0
        self.running: dict[str, tuple[Step, float]] = {}
        self._said = time.monotonic()

    def event(self, event: Event, total: int) -> None:
        """Take in one event; ``total`` is how many steps are known now."""
        self.total = total
        if isinstance(event, Started):
            self.running.setdefault(event.step.digest, (event.step, time.monotonic()))
        elif isinstance(event, Done):
            self.running.pop(event.step.digest, None)
            if event.step.number:
                self.say(done_line(event.step, total, self._width()))
        elif isinstance(event, Note) and event.warning:
            self.say(f"warning: {event.text}")

    def tick(self) -> None:
        """Called a few times a second."""
        if self.running and time.monotonic() - self._said > HEARTBEAT:
            for step, since in list(self.running.values()):
                if step.number:
                    self.say(running_line(step, self.total, time.monotonic() - since))

    def say(self, text: str) -> None:
        self._said = time.monotonic()
        print(text, file=self.out, flush=True)

    def close(self) -> None:
        """The build has ended."""

    def _width(self) -> int:
        return 120


class LiveDisplay(PlainDisplay):
    """For terminals: finished steps scroll away above, running ones stay at the bottom and count their seconds."""

    ROWS = 8

    def __init__(self, out: TextIO | None = None) -> None:
        super().__init__(out)
        self._drawn = 0
        self._next = 0.0

    def event(self, event: Event, total: int) -> None:
        super().event(event, total)
        if not isinstance(event, (Line, Status)):
            self._draw()

    def tick(self) -> None:
        if time.monotonic() >= self._next:
            self._draw()

    def say(self, text: str) -> None:
        self._erase()
        print(text[: self._width()], file=self.out)
        self._draw()

    def close(self) -> None:
        self._erase()
        self.out.flush()

    def _draw(self) -> None:
        self._next = time.monotonic() + 0.2
        now = time.monotonic()
        rows = [running_line(step, self.total, now - since) for step, since in self.running.values()]
        if len(rows) > self.ROWS:
            rows = [*rows[: self.ROWS - 1], f"      and {len(rows) - self.ROWS + 1} more"]
        self._erase()
        width = self._width()
        self.out.write("".join(f"{row[:width]}\n" for row in rows))
        self.out.flush()
        self._drawn = len(rows)

    def _erase(self) -> None:
        if self._drawn:
            getattr(self.out, "raw", self.out).write(f"\x1b[{self._drawn}A\x1b[J")
        self._drawn = 0

    def _width(self) -> int:
        return max(20, shutil.get_terminal_size().columns - 1)


def title(step: Step) -> str:
    """The instruction without the wrappers that envgen puts around every download."""
    return _WRAPPERS.sub("", step.title)


def done_line(step: Step, total: int, width: int = 120) -> str:
    """``[ 3/17] RUN make  12.3s``; a long instruction is cut, never the outcome."""
    outcome = "cached" if step.cached else f"{step.seconds:.1f}s"
    if step.error:
        outcome = "FAILED" if step.failed else "called off"
    head = _head(step, total)
    return f"{head} {printable(title(step), max(10, width - len(head) - len(outcome) - 3))}  {outcome}"


def running_line(step: Step, total: int, seconds: float) -> str:
    """``[ 3/17] RUN make … 12s: the last thing that it said``."""
    said = step.status or (step.lines[-1] if step.lines else "")
    tail = f": {printable(said, 80)}" if said.strip() else ""
    return f"{_head(step, total)} {printable(title(step), 60)} … {seconds:.0f}s{tail}"


def printable(text: str, limit: int) -> str:
    """One line without control characters: output of a build must not be able to drive the terminal."""
    return shorten(text.strip(), limit)


def _head(step: Step, total: int) -> str:
    if not step.number:
        return " " * (len(str(total)) * 2 + 3)
    return f"[{step.number:>{len(str(total))}}/{total}]"


def choose(live: bool) -> PlainDisplay:
    """The display for stderr as it is."""
    return LiveDisplay() if live and sys.stderr.isatty() else PlainDisplay()
