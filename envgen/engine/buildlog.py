"""The log file of one build: everything that buildx printed. Old ones are removed."""

from __future__ import annotations

import contextlib
import time
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import TextIO

from envgen import files

KEPT = 20


class BuildLog:
    """A new file, which is written line by line."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path, self._file = _free(folder, f"build-{name}-{time.strftime('%Y%m%dT%H%M%S')}")
        prune(folder, f"build-{name}-", KEPT)

    def __enter__(self) -> BuildLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is not None:
            cancelled = issubclass(kind, KeyboardInterrupt)
            self.say("cancelled" if cancelled else f"ended by {kind.__name__}: {error}")
        self._file.close()

    def say(self, text: str) -> None:
        """Write a line."""
        self._file.write(f"{text}\n")
        self._file.flush()


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
