"""What a build shows while it runs: a line for each finished step; on a terminal also what runs, and how long."""

from __future__ import annotations

import re
import shutil
import sys
import time
from typing import TextIO

from envgen.engine.progress import Step
from envgen.text import shorten

_WRAPPERS = re.compile(r"((sh|python3) )?/run/envgen/(with-(network|index) )?(?=\S)")
HEARTBEAT = 30.0  # seconds of silence after which a pipe or a log gets a line that a step still runs


class Display:
    """``live``: rewrite the last line, so that the steps that run and their time can be seen."""

    def __init__(self, out: TextIO | None = None, *, live: bool = False) -> None:
        self._out = out or sys.stderr
        self._live = live
        self._running: dict[int, tuple[Step, float]] = {}
        self._said = time.monotonic()

    def step(self, step: Step) -> None:
        """A step that has begun, written something or ended."""
        if step.internal:
            return
        if not step.ended:
            self._running.setdefault(id(step), (step, time.monotonic()))
        elif self._running.pop(id(step), None):
            self._print(done_line(step, self._width()))

    def tick(self) -> None:
        """Called a few times a second."""
        now = time.monotonic()
        if self._running and now - self._said > (0.2 if self._live else HEARTBEAT):
            rows = [running_line(step, now - since) for step, since in self._running.values()]
            if self._live:
                more = f"{len(rows)} steps run; " if len(rows) > 1 else ""
                self._print(more + rows[0], end="")
            else:
                self._print("\n".join(rows))

    def close(self) -> None:
        """The build has ended."""
        self._print("", end="")

    def _print(self, text: str, end: str = "\n") -> None:
        if self._live:
            getattr(self._out, "raw", self._out).write("\r\x1b[K")  # the line of the steps that run
            text = text[: self._width()]
        self._said = time.monotonic()
        print(text, file=self._out, end=end, flush=True)

    def _width(self) -> int:
        return max(20, shutil.get_terminal_size().columns - 1) if self._live else 120


def done_line(step: Step, width: int = 120) -> str:
    """``[final 3/17] RUN make  12.3s``; a long instruction is cut, never the outcome."""
    outcome = "cached" if step.cached else f"{step.seconds:.1f}s"
    if step.error:
        outcome = "FAILED" if step.failed else "called off"
    return f"{shorten(title(step), max(10, width - len(outcome) - 2))}  {outcome}"


def running_line(step: Step, seconds: float) -> str:
    """``[final 3/17] RUN make … 12s: the last thing that it said``."""
    said = f": {shorten(step.status.strip(), 80)}" if step.status.strip() else ""
    return f"{shorten(title(step), 70)} … {seconds:.0f}s{said}"


def title(step: Step) -> str:
    """The instruction without the wrappers that envgen puts around every download."""
    return _WRAPPERS.sub("", step.title)
