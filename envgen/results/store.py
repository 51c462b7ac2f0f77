"""Run records: JSON lines, one file a run, each sample on disk before the next is measured.

``<folder>/<utc>-<kind>-<id>.jsonl``: a start line, a line a sample, an end line. Every line is appended by one write,
so a kill at any moment leaves whole lines and at most one that is cut off. A file without an end line is an interrupted
run; it is kept, and read like any other. While a run is being written its writer holds an advisory lock (flock) on the
file: that is how readers tell ``running`` from ``interrupted``.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Any

from envgen.errors import ResultsError, UsageError
from envgen.results.clean import without_secrets
from envgen.results.lines import Line, encode, fault, utc
from envgen.results.model import FORMAT, INTERRUPTED, RUNNING, Record, Sample, frozen

KIND = re.compile(r"[a-z][a-z0-9_]{0,30}")
SUFFIX = ".jsonl"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Run:
    """A run that is being recorded. Threads may share it. As a context manager it closes the file at the end.

    A block that is left before ``end`` leaves an interrupted run: all samples so far, no end line.
    """

    def __init__(self, path: Path, ident: str, descriptor: int) -> None:
        self.path = path
        self.id = ident
        self.samples = 0
        self._descriptor = descriptor
        self._size = 0  # of the whole lines
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def sample(self, data: Mapping[str, Any]) -> None:
        """Append one measurement. Raises ResultsError when it can't be written; what was written before is kept."""
        at = round(time.monotonic() - self._began, 6)
        with self._lock:
            self._append(encode({"type": "sample", "at": at, "data": data}))
            self.samples += 1

    def end(self, outcome: str, summary: Mapping[str, Any]) -> None:
        """Write the end line, bring everything to the disk and close. ``outcome``: one word, such as passed, failed."""
        with self._lock:
            ended = utc(datetime.now(timezone.utc))
            self._append(encode({"type": "end", "ended": ended, "outcome": outcome, "summary": summary}))
            self._close()

    def close(self) -> None:
        """Close without an end line: the run was interrupted. Nothing happens when it has ended."""
        with self._lock:
            self._close()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except ResultsError:
            if error is None:  # else the first trouble is the one to tell
                raise

    def _append(self, line: bytes) -> None:
        if self._descriptor < 0:
            raise ValueError("this run has ended")
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            # Half a line helps nobody: back to the last whole one, which needs no space.
            with suppress(OSError):  # readers leave a line out that is cut off
                os.ftruncate(self._descriptor, self._size)
            raise self._trouble(error) from error
        self._size += len(line)

    def _close(self) -> None:
        if self._descriptor < 0:
            return
        descriptor, self._descriptor = self._descriptor, -1
        try:
            os.fsync(descriptor)
            _sync_folder(self.path.parent)
        except OSError as error:
            if error.errno != errno.EINVAL:  # a pipe or a special file system that knows no fsync
                raise self._trouble(error) from error
        finally:
            os.close(descriptor)

    def _trouble(self, error: OSError) -> ResultsError:
        what = "there is no space left for the results" if error.errno in _FULL else f"can't write results: {error}"
        return ResultsError(
            f"{what}; {self.samples} samples of run {self.id} are kept in {self.path}",
            hint="free some space; `envgen results rm RUN` removes old runs" if error.errno in _FULL else "",
        )


def start(folder: Path, kind: str, environment: Mapping[str, object], parameters: Mapping[str, object]) -> Run:
    """Begin a record in ``folder`` (made when missing) and return the run to write to.

    ``kind`` is the verb: smoke, stress, bench, accept (a small letter, then small letters, digits, ``_``). What looks
    like a secret in ``environment`` and ``parameters`` is not written.
    Raises ResultsError when the folder can't be made or written.
    """
    if not KIND.fullmatch(kind):
        raise ValueError(f"not a kind of run: {kind!r}")
    time.sleep(0.001)  # names hold milliseconds: of two runs in one, which came first would be up to their random ids
    now = datetime.now(timezone.utc)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path, ident, descriptor = _create(folder, kind, now)
    except OSError as error:
        raise _cannot(folder, error) from error
    run = Run(path, ident, descriptor)
    line = {"type": "start", "format": FORMAT, "id": ident, "kind": kind, "started": utc(now)}
    with suppress(OSError):  # a file system without locks: readers call the run interrupted until it has ended
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        told = {"environment": without_secrets(environment), "parameters": without_secrets(parameters)}
        run._append(encode({**line, **told}))
    except ResultsError as error:
        os.close(descriptor)
        path.unlink(missing_ok=True)  # not one whole line: nothing is lost
        raise _cannot(folder, error.__cause__) from error
    return run


def _create(folder: Path, kind: str, now: datetime) -> tuple[Path, str, int]:
    stamp = now.strftime("%Y%m%dT%H%M%S.") + f"{now.microsecond // 1000:03d}Z"
    while True:
        ident = secrets.token_hex(4)
        path = folder / f"{stamp}-{kind}-{ident}{SUFFIX}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return path, ident, os.open(path, flags, 0o644)
        except FileExistsError:
            continue


def _cannot(folder: Path, error: BaseException | None) -> ResultsError:
    reason = getattr(error, "strerror", None) or str(error)
    return ResultsError(
        f"can't write results into {folder}: {reason}", hint="name a folder that you may write to, with free space"
    )


def _sync_folder(folder: Path) -> None:
    """The new name itself must survive a power cut, too."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_record(path: Path) -> int:
    """A descriptor for reading ``path``. A link, a pipe, a folder is refused with one sentence."""
    import stat

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such file") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            fault(path, 0, "this is a link, and links are not followed", "copy the record itself here")
        fault(path, 0, f"can't be read: {error.strerror}")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        fault(path, 0, "this is no regular file")
    return descriptor


def is_held(descriptor: int) -> bool:
    """Does a writer hold the file?"""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def load(path: Path) -> Record:
    """Read a record, also of a run that is going on or was interrupted.

    Raises UsageError when there is no such file, and ResultsError with file and line when it is damaged, no record at
    all, or written by a newer envgen.
    """
    with os.fdopen(open_record(path), "rb") as file:
        held = is_held(file.fileno())
        try:
            return _read(path, file.readlines(), held)
        except OSError as error:
            fault(path, 0, f"can't be read: {error.strerror}")


def _read(path: Path, lines: list[bytes], held: bool) -> Record:
    if not lines:
        fault(path, 0, "this is no run record of envgen: it is empty")
    head = Line(path, 1, lines[0])
    head.check_format()
    samples: list[Sample] = []
    end: Line | None = None
    torn = False
    for number, raw in enumerate(lines[1:], 2):
        if end is not None:
            fault(path, number, "something follows the end of the run", "the file is damaged: cut it off here")
        if number == len(lines) and not raw.endswith(b"\n") and _cut_off(path, number, raw):
            torn = True
            break
        line = Line(path, number, raw)
        if line.members.get("type") == "sample":
            samples.append(Sample(line.number_of("at"), frozen(line.mapping("data"))))
        elif line.members.get("type") == "end":
            end = line
        else:
            line.bad("type", "`sample` or `end`")
    return Record(
        path=path,
        id=head.text("id"),
        kind=head.text("kind"),
        started=head.moment("started"),
        environment=frozen(head.mapping("environment")),
        parameters=frozen(head.mapping("parameters")),
        samples=tuple(samples),
        outcome=end.text("outcome") if end else RUNNING if held else INTERRUPTED,
        summary=frozen(end.mapping("summary") if end else {}),
        ended=end.moment("ended") if end else None,
        torn=torn,
    )


def _cut_off(path: Path, number: int, raw: bytes) -> bool:
    """A line without its newline is whole when it is JSON: no beginning of an object is an object."""
    try:
        Line(path, number, raw)
    except ResultsError:
        return True
    return False
