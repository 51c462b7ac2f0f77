"""What a build shows while it runs: a line for each finished step; on a terminal also what runs, and how long."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping
from typing import TextIO

from envgen.engine.buildx import Step
from envgen.text import Loudness, shorten

HEARTBEAT = 30.0  # seconds of silence after which a pipe or a log gets a line that a step still runs


class Display:
    """``names``: what steps do, by instruction. ``live``: on a terminal, rewrite the last line."""

    def __init__(self, names: Mapping[str, str], out: TextIO | None = None, *, live: bool = False) -> None:
        self._names = names
        self._out = out or sys.stderr
        self._live = live and self._out.isatty() and os.environ.get("TERM") != "dumb"
        self._running: dict[int, tuple[Step, float]] = {}
        self._said = time.monotonic()

    def step(self, step: Step) -> None:
        """A step that has begun, written something or ended."""
        if not step.ended:
            if name_of(step, self._names):
                self._running.setdefault(id(step), (step, time.monotonic()))
            return
        self._running.pop(id(step), None)
        if name := name_of(step, self._names):
            outcome = "cached" if step.cached else f"{step.seconds:.1f}s"
            if step.error:
                outcome = "FAILED" if step.failed else "cancelled"
            self._print(line_of(outcome, name))

    def tick(self) -> None:
        """Called a few times a second."""
        now = time.monotonic()
        if self._running and now - self._said > (0.2 if self._live else HEARTBEAT):
            rows = []
            for step, since in self._running.values():
                said = f": {step.status.strip()}" if step.status.strip() else ""
                rows.append(line_of(f"… {now - since:.0f}s", shorten(name_of(step, self._names), 70) + said))
            if self._live:
                self._print(rows[0] + (f" (and {len(rows) - 1} more)" if len(rows) > 1 else ""), end="")
            else:
                self._print("\n".join(rows))

    def close(self) -> None:
        """The build has ended."""
        self._print("", end="")

    def _print(self, text: str, end: str = "\n") -> None:
        if Loudness.quiet:
            return
        if self._live:
            getattr(self._out, "raw", self._out).write("\r\x1b[K")  # the line of the steps that run
            text = text[: max(20, shutil.get_terminal_size().columns - 1)]
        self._said = time.monotonic()
        print(text, file=self._out, end=end, flush=True)


def name_of(step: Step, names: Mapping[str, str]) -> str:
    """What is shown of a step; nothing of what is internal, unless it fails."""
    kind, _, image = step.instruction.partition(" ")
    if step.internal or step.failed:
        return "" if step.internal else names.get(step.instruction, step.title)
    if kind == "FROM":  # it ends in no time where the image is there
        return "" if step.ended and step.seconds < 0.1 else f"Base image {image}"
    return names.get(step.instruction, step.title if kind == "RUN" else "")


def line_of(outcome: str, name: str) -> str:
    """``  12.3s  Installs rich``."""
    return f"{outcome:>9}  {shorten(name, 150)}"
