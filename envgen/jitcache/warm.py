"""Compile modules inside a service before anything needs them: progress, the first real error, fewer jobs if killed."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from envgen.engine.base import MISSHAPEN, Container, Engine, read_json
from envgen.errors import EngineError
from envgen.inside.run import text_of
from envgen.inside.warm import MARK
from envgen.jitcache.model import Recorded
from envgen.jitcache.query import Query, arch_folders
from envgen.jitcache.service import JitCache
from envgen.render.environment import with_start_up

_STEP = re.compile(r"^\[(\d+)/(\d+)\] (.*)")
_OUTPUT = re.compile(r" -o (\S+)")
_ERROR = re.compile(
    r"\b(fatal error|error)( #?\w+)?:|: error\b|^(nvcc|ptxas|cicc) fatal|undefined reference|cannot find -l"
)
# What is left in the output when the kernel's memory killer took a compiler.
_KILLED = re.compile(r"\bKilled\b|signal 9\b|Killed signal terminated|out of memory|Cannot allocate memory", re.I)


@dataclass
class Built:
    """How it went for one module: done, masked, unknown (no generator takes its name alone) or failed."""

    name: str
    outcome: str = "failed"
    seconds: float = 0.0
    jobs: int = 0
    killed: bool = False
    error: str = ""
    lines: list[str] = field(default_factory=list, repr=False)


def first_error(lines: Sequence[str]) -> str:
    """The compiler's first complaint with the two lines below it; ninja's last line says only that something failed."""
    for number, line in enumerate(lines):
        if _ERROR.search(line) and not _STEP.match(line):
            return "\n".join(lines[number : number + 3])
    return ""


class Warm:
    """One run of the builder in a container, and what it said. ``show`` gets each line of progress."""

    def __init__(self, engine: Engine, container: Container, python: str, show: Callable[[str], None]) -> None:
        self.engine = engine
        self.container = container
        self.python = python
        self.show = show
        self.built: dict[str, Built] = {}
        self.version = ""
        self._now: Built | None = None
        self._since = 0.0
        self._tail: list[str] = []

    def run(self, names: Sequence[str], jobs: int) -> None:
        """Build these modules; those whose compiler was killed once more with half the jobs, down to one."""
        left = list(names)
        while left:
            self._once(left, jobs)
            left = [name for name in left if self._was_killed(name)]
            if not left or jobs == 1:
                return
            jobs = max(1, jobs // 2)
            self.show(f"{', '.join(left)}: the compiler was killed (memory); again with MAX_JOBS={jobs}")

    def _was_killed(self, name: str) -> bool:
        return name in self.built and self.built[name].killed

    def _once(self, names: Sequence[str], jobs: int) -> None:
        text = text_of("warm")
        self._tail = []
        # -P (3.11) isn't everywhere: the empty entry that -c puts first would make /flashinfer a package.
        start = "import sys; sys.path[:] = [p for p in sys.path if p]; "
        command = [self.python, "-c", start + f"exec(compile({text!r}, 'envgen-warm', 'exec'))", *names]
        code = self.engine.exec_lines(
            self.container.id,
            with_start_up(command),
            lambda line: self._line(line, jobs),
            env={"MAX_JOBS": str(jobs)},
            user="0:0",
            workdir="/",
        )
        if not self.built and code:
            reason = next((line for line in reversed(self._tail) if line.strip()), f"exit code {code}")
            raise EngineError(
                f"FlashInfer could not be imported in {self.container.name}: {reason}", hint="run `envgen doctor`"
            )

    def _line(self, line: str, jobs: int) -> None:
        if line.startswith(MARK):
            try:
                self._event(read_json(line[len(MARK) :]), jobs)
            except MISSHAPEN:
                self._tail.append(line)
            return
        self._tail = [*self._tail[-50:], line]
        if self._now is None:
            return
        self._now.lines.append(line)
        step = _STEP.match(line)
        if step:
            output = _OUTPUT.search(step[3])
            what = output[1].rpartition("/")[2] if output else "linked"
            self.show(f"{self._now.name}: {step[1]}/{step[2]} {what} {time.monotonic() - self._since:.0f}s")

    def _event(self, event: dict[str, Any], jobs: int) -> None:
        kind, module = event["event"], event.get("module", "")
        if not isinstance(kind, str) or not isinstance(module, str):
            raise TypeError("an event of another form")
        if kind == "import":
            self.version = str(event["version"])
            return
        if kind == "start":
            self._now = self.built[module] = Built(module, jobs=jobs)
            self._since = time.monotonic()
            return
        built = self.built[module]
        built.outcome = kind
        built.seconds = round(time.monotonic() - self._since, 2)
        self._now = None
        if kind == "failed":
            output = [*built.lines, *str(event.get("message", "")).splitlines()]
            built.error = first_error(output) or "\n".join(output[-3:])
            built.killed = not first_error(output) and bool(_KILLED.search("\n".join(output)))


def warm(
    cache: JitCache, names: Sequence[str], jobs: int, show: Callable[[str], None]
) -> tuple[list[Built], Recorded | None]:
    """Build ``names`` (none: what is partial or proven stale) and record their baselines.

    What is proven stale is cleared first, under its lock: FlashInfer itself would say that it is up to date.
    """
    place = cache.running()
    archs = arch_folders(str(cache.profile.cuda.arch_list))
    # Nothing there yet, or not all that is named: no reason to stop.
    found = [module for module in cache.inventory(Query(archs=archs)).modules if not names or module.name in names]
    stale = sorted({module.name for module in found if module.state == "stale" and not module.guess})
    wanted = list(names) or sorted({module.name for module in found if module.state == "partial"} | set(stale))
    if not wanted:
        return [], None
    if stale:
        show(f"clearing what is stale: {', '.join(stale)}")
        cache.clear(Query(tuple(stale), archs=archs), causes={"stale": True})
    since = time.time_ns()
    run = Warm(cache.engine, place, cache.profile.base.python, show)
    run.run(wanted, jobs)
    done = tuple(name for name, built in run.built.items() if built.outcome == "done")
    recorded = cache.baseline(Query(done, run.version, archs), since=since) if done else None
    return list(run.built.values()), recorded
