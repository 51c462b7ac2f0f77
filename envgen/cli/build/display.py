"""The steps of a build on the terminal."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from typing import TextIO

from envgen.engine.buildx import BuildStep
from envgen.text import Loudness, shorten

HEARTBEAT = 30.0  # seconds without output after which a pipe or a log gets a line for each running step


class Display:
    """Prints a line for each finished step; on a terminal (``live``) the last line shows the running one.

    ``names``: what to show for each instruction. ``beside``: what happens at the same time.
    """

    def __init__(
        self, names: Mapping[str, str], out: TextIO | None = None, *, live: bool = False,
        beside: Callable[[], str] = str,
    ) -> None:  # fmt: skip
        self._names = names
        self._beside = beside
        self._out = out or sys.stderr
        self._live = live and self._out.isatty() and os.environ.get("TERM") != "dumb"
        self._running: dict[int, tuple[BuildStep, float]] = {}
        self._last_print = time.monotonic()

    def step(self, step: BuildStep) -> None:
        """Called when a step begins, writes something or ends."""
        name = self._name_of(step)
        if not step.ended:
            if name:
                self._running.setdefault(id(step), (step, time.monotonic()))
            return
        self._running.pop(id(step), None)
        if name:
            outcome = "cached" if step.cached else f"{step.seconds:.1f}s"
            if step.error:
                outcome = "FAILED" if step.failed else "cancelled"
            self._print(_line(outcome, name))

    def tick(self) -> None:
        """Called a few times a second."""
        now = time.monotonic()
        if not self._running or now - self._last_print <= (0.2 if self._live else HEARTBEAT):
            return
        rows = []
        for step, since in self._running.values():
            status = f": {_now(step.status.strip())}" if step.status.strip() else ""
            rows.append(_line(f"… {now - since:.0f}s", shorten(self._name_of(step), 70) + status))
        if beside := self._beside():
            rows.append(_line("beside it", beside))
        if self._live:
            more = len(rows) - 1 - bool(beside)
            self._print(rows[0] + (f" (and {more} more)" if more else "") + (f" | {beside}" if beside else ""), end="")
        else:
            self._print("\n".join(rows))

    def close(self) -> None:
        """Clear the line of the running step."""
        self._print("", end="")

    def _name_of(self, step: BuildStep) -> str:
        """What to show for a step; "" for one that is not worth a line."""
        kind, _, image = step.instruction.partition(" ")
        if step.internal:  # the last one writes gigabytes, without a word of its own
            return "Exports the image" if step.name.startswith("exporting to ") else ""
        if kind == "FROM" and not step.failed:  # not when the image was already there
            return "" if step.ended and step.seconds < 0.1 else f"Base image {image}"
        return self._names.get(step.instruction, step.title if kind == "RUN" or step.failed else "")

    def _print(self, text: str, end: str = "\n") -> None:
        if Loudness.quiet:
            return
        if self._live:
            getattr(self._out, "raw", self._out).write("\r\x1b[K")  # clear the line of the running step
            text = text[: max(20, shutil.get_terminal_size().columns - 1)]
        self._last_print = time.monotonic()
        print(text, file=self._out, end=end, flush=True)


def _now(status: str) -> str:
    """What runs after ``status``: uv prints a line at the end of each phase, and the next one takes the time."""
    phase = re.fullmatch(r"(Resolved|Prepared|Uninstalled) [0-9]+ packages? in .*", status)
    then = {"Resolved": "downloading", "Prepared": "installing", "Uninstalled": "installing"}
    return f"{status}, now {then[phase[1]]}" if phase else status


def _line(outcome: str, name: str) -> str:
    """``  12.3s  Installs rich``."""
    return f"{outcome:>9}  {shorten(name, 150)}"
