"""The phases of a server's start, read from its log: which one it is in, for how long, and what
takes the time.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import yaml


class Phase(Enum):
    START = "start"
    ARGUMENTS = "arguments"  # only of a program that refuses them
    WEIGHTS = "weights"
    COMPILE = "compile"
    API = "api server"  # the engine is ready, and its HTTP server is not
    ANSWER = "answer"


# vLLM puts "(EngineCore pid=69) " in front of the lines of its processes.
_SPEAKER = re.compile(r"^\(\w+ pid=\d+\) ")
_REFUSED = re.compile(r"^[\w./ -]{1,80}: error: ")  # the last line of argparse, after the usage
# A progress bar has no line end until it is full, so its line arrives when all is done: it says
# itself how long that took.
_BAR = re.compile(r"\d+/\d+ \[(?:(\d+):)?(\d+):(\d\d)<")
_COMPILER = re.compile(r"\b(ninja|nvcc|cicc|ptxas|cc1plus)\b")
LOOK = 5.0  # seconds between two looks for compilers
_SHARE = re.compile(r",?( file)? ?(\d+)(?: %| of (\d+))$")
SHORT = 1.0  # seconds; a shorter phase is not reported


@cache
def _data() -> Any:
    return yaml.safe_load(Path(__file__).with_suffix(".yaml").read_bytes())


@dataclass(eq=False)
class StartProgress:
    """The phases of one start. ``clock`` gives seconds.

    ``on_end`` gets each phase when it ends, its seconds, and what took them.
    """

    clock: Callable[[], float] = time.monotonic
    on_end: Callable[[Phase, float, str], None] = lambda _phase, _seconds, _what: None

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """The program was restarted: begin again."""
        self.phase = Phase.START
        self.detail = ""
        self._in_usage = False
        self._since = self._detail_since = self._looked = self.clock()
        self._spent: dict[Phase, float] = {}
        self._parts: dict[str, float] = {}  # of this phase

    def feed(self, line: str) -> None:
        """Read one line of the log."""
        line = _SPEAKER.sub("", line.rsplit("\r", 1)[-1])
        if line.startswith("usage: ") or (self._in_usage and line.startswith(" ")):
            self._in_usage = True  # it lists flags: --enable-flashinfer-autotune
            return
        if self._in_usage and _REFUSED.match(line):
            self._enter(Phase.ARGUMENTS)
        self._in_usage = False
        for row in _data()["lines"]:
            if match := re.search(row["line"], line[:2000]):
                if "phase" in row and self.phase is not Phase.ANSWER:
                    self._enter(Phase(row["phase"]))
                self._note(match.expand(row.get("now", "")), bar_seconds(line))
                return

    @property
    def may_have_built(self) -> bool:
        """Whether the log named a build some seconds ago; it does not say when that has ended."""
        return self.detail.startswith("nvcc") and self.clock() - self._looked >= LOOK

    def see(self, commands: Sequence[str]) -> None:
        """The commands that run: without a compiler, the build has ended."""
        self._looked = self.clock()
        if commands and not any(map(_COMPILER.search, commands)):
            self._note("Triton kernels and CUDA graphs")

    def answering(self) -> None:
        """The port answers: now the completion is awaited."""
        self._enter(Phase.ANSWER)

    def finish(self) -> None:
        """The last phase has ended."""
        self._end()

    def _enter(self, phase: Phase) -> None:
        if phase is not self.phase:
            self._end()
            self.phase = phase

    def _end(self) -> None:
        self._note("")
        seconds = self.clock() - self._since
        before = self._spent.get(self.phase, 0.0)
        self._spent = {**self._spent, self.phase: before + seconds}
        long = [(name, took) for name, took in self._parts.items() if name and took >= SHORT]
        parts = [f"{name} {took:.0f} s" for name, took in long]
        self.on_end(self.phase, seconds, ", ".join(parts))
        self._since = self._detail_since = self.clock()
        self._parts = {}

    def _note(self, detail: str, already: float = 0.0) -> None:
        """Something else is done now, and has been for ``already`` seconds."""
        if detail != self.detail:
            began = max(self.clock() - already, self._detail_since)
            name = _SHARE.sub("", self.detail)
            self._parts[name] = self._parts.get(name, 0.0) + began - self._detail_since
            self.detail = detail
            self._detail_since = self._looked = began

    def took(self) -> dict[str, float]:
        """Seconds spent in each phase so far, in the order of a start."""
        now = self._spent.get(self.phase, 0.0) + self.clock() - self._since
        spent = {**self._spent, self.phase: now}
        return {phase.value: round(spent[phase], 1) for phase in Phase if phase in spent}

    def words(self) -> str:
        """What the server is doing."""
        words = str(_data()["doing"][self.phase.value])
        return f"{words}, {self.detail}" if self.detail else words

    @property
    def share(self) -> float | None:
        """How much of it is done, from 0 to 1, where the log says so."""
        match = _SHARE.search(self.detail)
        if not match:
            return None
        whole = int(match[3] or 100)
        return min(1.0, int(match[2]) / max(1, whole))


def bar_seconds(line: str) -> float:
    """How long the progress bar in ``line`` has run by its own account; 0 without one."""
    if not (match := _BAR.search(line[:2000])):
        return 0.0
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return 3600.0 * hours + 60 * minutes + seconds
