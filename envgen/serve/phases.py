"""Where a server's start stands, read from its log: the words of vLLM 0.14 to 0.30 and of FlashInfer's builds.

A server that says none of this goes from its start straight to its answer.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from enum import Enum

from envgen.profile.model import Phases


class Phase(Enum):
    START = "start"
    WEIGHTS = "weights"
    COMPILE = "compile"
    ANSWER = "answer"


# What is going on, in words that continue "serve: ".
DOING: Mapping[Phase, str] = {
    Phase.START: "starting",
    Phase.WEIGHTS: "loading weights",
    Phase.COMPILE: "compiling, capturing graphs",
    Phase.ANSWER: "waiting for its first answer",
}

_Detail = Callable[["re.Match[str]"], str]
# (what a line looks like, the phase that it belongs to (None: whatever it is), what it says of the progress)
LINES: tuple[tuple[str, Phase | None, _Detail], ...] = (
    (r"Starting to load model|Loading drafter model", Phase.WEIGHTS, lambda _: ""),
    (r"Loading .*?(\d+)% Completed", Phase.WEIGHTS, lambda found: f"{found[1]} %"),
    (r"Loading weights took ([\d.]+) seconds", Phase.COMPILE, lambda found: f"weights took {found[1]} s"),
    (r"Model loading took", Phase.COMPILE, lambda _: ""),
    (r"Capturing CUDA graphs.*?(\d+)%", Phase.COMPILE, lambda found: f"CUDA graphs {found[1]} %"),
    (r"Graph capturing finished", Phase.COMPILE, lambda _: "CUDA graphs are captured"),
    (r"Dynamo bytecode transform|Compiling a graph|torch\.compile takes", Phase.COMPILE, lambda _: "torch.compile"),
    (r"Warming up (FlashInfer|model|kernel)|[Aa]utotun", Phase.COMPILE, lambda _: "warming up"),
    (r"init engine \(.*took ([\d.]+) s", Phase.COMPILE, lambda found: f"the engine is ready after {found[1]} s"),
    # ninja's own lines, with FLASHINFER_JIT_VERBOSE=1; a JIT build may come in any phase.
    (r"^\[(\d+)/(\d+)\] .*(nvcc|c\+\+|g\+\+|cuda)", None, lambda found: f"JIT: {found[1]} of {found[2]} files"),
    (r"flashinfer\.jit: (.{1,80})", None, lambda found: f"JIT: {found[1]}"),
)
# vLLM writes "(EngineCore pid=69) " before what its processes say.
_SPEAKER = re.compile(r"^\(\w+ pid=\d+\) ")


class Progress:
    """The phases of one start. ``clock`` gives seconds; ``limits`` are the profile's."""

    def __init__(self, limits: Phases, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._lines = tuple((re.compile(pattern), phase, detail) for pattern, phase, detail in LINES)
        self.restart()

    def restart(self) -> None:
        """The program was started again: from the beginning."""
        self.phase = Phase.START
        self.detail = ""
        self._since = self._clock()
        self._spent: dict[Phase, float] = {}

    def feed(self, line: str) -> None:
        """Take in one line of the log."""
        line = _SPEAKER.sub("", line.rsplit("\r", 1)[-1])
        for pattern, phase, detail in self._lines:
            found = pattern.search(line[:2000])
            if found is None:
                continue
            if phase is not None and self.phase is not Phase.ANSWER:
                self._enter(phase)
            self.detail = detail(found) or self.detail
            return

    def answering(self) -> None:
        """The port answers: what is waited for now is the completion."""
        if self.phase is not Phase.ANSWER:
            self._enter(Phase.ANSWER)

    def _enter(self, phase: Phase) -> None:
        if phase is self.phase:
            return
        now = self._clock()
        self._spent[self.phase] = self._spent.get(self.phase, 0.0) + now - self._since
        self.phase, self._since, self.detail = phase, now, ""

    def took(self) -> dict[str, float]:
        """Seconds spent in each phase so far, in the order of a start."""
        spent = dict(self._spent)
        spent[self.phase] = spent.get(self.phase, 0.0) + self._clock() - self._since
        return {phase.value: round(spent[phase], 1) for phase in Phase if phase in spent}

    def words(self) -> str:
        """What is going on."""
        return DOING[self.phase] + (f", {self.detail}" if self.detail else "")

    def overdue(self) -> str:
        """A sentence when the phase has taken longer than it may; else empty."""
        limit = getattr(self._limits, self.phase.value)
        if limit is None or self.took()[self.phase.value] <= limit.seconds:
            return ""
        return f"{self.words()} for more than {limit.seconds} s (ready.phases.{self.phase.value})"
