"""Reading a log of any size: the known causes in it, and its first exception.

Of a large log the ends are read, and what is around the first errors between them: a server prints its start and its
end, and days of requests in between. The rest is only searched for errors, some hundred times faster.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import BinaryIO, Protocol

from envgen.explain import BATCH, LONGEST, UNKNOWN, Circumstances, Classifier, Explanation
from envgen.explain.first import First, Tracker
from envgen.text import plain_text

_TIME = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{1,9}Z ")  # Docker's, as of `docker logs -t`
ENDS = 8 << 20  # bytes of each end that are read
AROUND = 64 << 10  # bytes around an error between the ends
ERRORS = 24  # of which as many are read
START = 20_000  # lines, in which a server has started
_MARKS = (b"Traceback (most recent call last)", b"ERROR", b"FATAL", b"fatal error", b"error: ", b"Killed")
# Most lines of a server: a request that was answered, and the state every ten seconds. They have no cause.
ALL_IS_WELL = (b' HTTP/1.1" 200', b" [loggers.py:")


@dataclass(frozen=True)
class LogReport:
    """``lines``: all of the log's. ``skipped``: bytes that were only searched for errors."""

    lines: int
    skipped: int
    explanations: tuple[Explanation, ...]
    first: First | None
    phase: str = ""  # what the server was doing at its first exception


class PhaseReader(Protocol):
    """Reads the beginning of a log, line by line. ``done``: there is nothing more to learn."""

    done: bool

    def feed(self, line: str) -> str:
        """Read a line; returns what the server was doing then."""


class ExplainReader:
    """Reads a log in pieces. ``kind``: build, jit or serve; None: any. ``phases`` reads its beginning, too."""

    def __init__(self, kind: str | None = None, phases: PhaseReader | None = None) -> None:
        self._phases, self._doing = phases, list[tuple[int, str]]()
        self._classifier, self._tracker = Classifier(kind), Tracker()
        self._lines = self._skipped = self._errors = self._open = 0

    def read(self, log: BinaryIO) -> None:
        """Read all of it."""
        head, ring, size = ENDS, deque[tuple[int, bytes]](), 0
        for before, data in pieces(log):
            self._lines = before + data.count(b"\n") + (not data.endswith(b"\n"))
            if head > 0:
                head -= len(data)
                self._whole(before, data)
                continue
            ring.append((before, data))
            size += len(data)
            while size > ENDS:
                size -= len(ring[0][1])
                self._between(*ring.popleft())
        for before, data in ring:
            self._whole(before, data)

    def report(self, known: Circumstances = UNKNOWN) -> LogReport:
        """What was found. ``known``: what is known beside the log."""
        first = self._tracker.first
        known = replace(known.beside(first), failed=known.failed or self._tracker.raised)
        doing = [words for line, words in self._doing if first and line <= first.line]
        phase = doing[-1] if doing else ""
        return LogReport(self._lines, self._skipped, self._classifier.found(known), first, phase)

    def _whole(self, before: int, data: bytes) -> None:
        lines = text_lines(data)
        for number, line in enumerate(lines, before + 1):
            if line:
                self._tracker.feed(line, number)
                if self._phases and not self._phases.done and number <= START:
                    now = self._phases.feed(line)
                    if not self._doing or self._doing[-1][1] != now:
                        self._doing.append((number, now))
        for at in range(0, len(lines), BATCH):
            self._classifier.read(lines[at : at + BATCH], before + at)

    def _between(self, before: int, data: bytes) -> None:
        """Read around the first errors."""
        at, self._open = min(self._open, len(data)), max(0, self._open - len(data))
        if at:  # the rest of what is around an error of the piece before
            at = _line_end(data, at)
            self._whole(before, data[:at])
        while self._errors < ERRORS and at < len(data):
            found = [place for mark in _MARKS if (place := data.find(mark, at)) >= 0]
            if not found:
                break
            begin = max(at, data.rfind(b"\n", 0, max(at, min(found) - AROUND // 8)) + 1)
            end = min(found) + AROUND
            self._errors += 1
            self._open, end = max(0, end - len(data)), _line_end(data, min(end, len(data)))
            self._whole(before + data.count(b"\n", 0, begin), data[begin:end])
            self._skipped += begin - at
            at = end
        self._skipped += len(data) - at


def _line_end(data: bytes, at: int) -> int:
    """The end of the line at ``at``."""
    found = data.find(b"\n", max(0, at - 1))
    return len(data) if found < 0 else found + 1


def pieces(log: BinaryIO, size: int = 1 << 20) -> Iterator[tuple[int, bytes]]:
    """A log in pieces of whole lines, each with the number of lines before it. Lines are cut at ``LONGEST`` bytes.

    It returns at Ctrl-C, too: a log that is followed has no other end.
    """
    before, rest, skipping = 0, b"", False
    try:
        # read1: what a pipe has, at once
        while data := (log.read1(size) if hasattr(log, "read1") else log.read(size)):
            if skipping:  # the rest of a long line
                found = data.find(b"\n")
                skipping, data = found < 0, b"" if found < 0 else data[found:]
            data = rest + data
            cut = data.rfind(b"\n") + 1
            rest = data[cut:]
            if len(rest) > LONGEST:
                rest, skipping = rest[:LONGEST], True
            if cut:
                yield before, data[:cut]
                before += data.count(b"\n", 0, cut)
    except KeyboardInterrupt:
        pass
    if rest:
        yield before, rest


def log_lines(log: BinaryIO) -> Iterator[str]:
    """All lines of a log, as ``text_lines`` has them."""
    return (line for _, data in pieces(log) for line in text_lines(data))


def text_lines(data: bytes) -> list[str]:
    """The lines of a piece without their ends, without colours and without Docker's time stamps.

    Bytes that are not UTF-8 become U+FFFD. A line that only says that all is well is empty.
    """
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [
        "" if any(words in line for words in ALL_IS_WELL) else _plain(line[:LONGEST].decode("utf-8", "replace"))
        for line in lines
    ]


def _plain(line: str) -> str:
    line = plain_text(line).removesuffix("\r")
    return _TIME.sub("", line) if line[:2] == "20" else line


def read_log(log: BinaryIO, known: Circumstances = UNKNOWN, *, kind: str | None = None) -> LogReport:
    """The known causes in a log, and its first exception."""
    reader = ExplainReader(kind)
    reader.read(log)
    return reader.report(known)
