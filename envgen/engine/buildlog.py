"""The log file of one build: everything that was said, in the order of time. Old ones are removed."""

from __future__ import annotations

import contextlib
import time
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import TextIO

from envgen import files
from envgen.engine.rawjson import Done, Event, Line, Note, Started, Step

KEPT = 20


class BuildLog:
    """Writes events as text, each line with the number of its step."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path, self._file = _free(folder, f"build-{name}-{time.strftime('%Y%m%dT%H%M%S')}")
        self._numbers: dict[str, int] = {}
        prune(folder, f"build-{name}-", KEPT)

    def __enter__(self) -> BuildLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is not None:
            self.say(f"ended by {kind.__name__}: {error}")
        self._file.close()

    def say(self, text: str) -> None:
        """A line of envgen's own."""
        self._file.write(f"{text}\n")
        self._file.flush()

    def event(self, event: Event) -> None:
        """Write one event; progress percentages are left out."""
        if isinstance(event, Note):
            self._file.write(f"{event.text}\n")
        elif isinstance(event, Line):
            self._file.write(f"#{self._number(event.step)} {event.text}\n")
        elif isinstance(event, Started):
            self._file.write(f"#{self._number(event.step)} {event.step.name}\n")
        elif isinstance(event, Done):
            self._file.write(f"#{self._number(event.step)} {_outcome(event.step)}\n")
            self._file.flush()

    def _number(self, step: Step) -> int:
        return self._numbers.setdefault(step.digest, len(self._numbers) + 1)


def prune(folder: Path, prefix: str, kept: int) -> None:
    """Remove all but the newest ``kept`` logs. Their names begin with the time, so names sort by age."""
    logs = sorted(path for path in folder.glob(f"{prefix}*.log") if path.is_file())
    for path in logs[:-kept]:
        with contextlib.suppress(OSError):
            path.unlink()


def _free(folder: Path, stem: str) -> tuple[Path, TextIO]:
    """A name that is not taken: two builds may start in one second."""
    for number in count(1):
        path = folder / f"{stem}{f'-{number}' if number > 1 else ''}.log"
        with contextlib.suppress(FileExistsError):
            return path, files.create(path, within=folder.parents[1])
    raise AssertionError


def _outcome(step: Step) -> str:
    if step.error:
        return f"ERROR: {step.error}"
    return "CACHED" if step.cached else f"DONE {step.seconds:.1f}s"
