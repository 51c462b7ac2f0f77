"""Reading a log: the known causes in its last 20 MB, and its first exception and deciding lines
there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO

from envgen.explain import LONGEST, UNKNOWN, Circumstances, Explanation, classify, likeliest
from envgen.explain.first import First, Tracker
from envgen.explain.unknown import STARTED, Clues, clues
from envgen.text import plain_text

# A run of a server: of any, of vLLM, of one of uvicorn.
_BEGINS = re.compile("envgen: starting the server|API server version|Started server process")
_TIME = re.compile(
    r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{1,9}Z "
)  # Docker's, as of `docker logs -t`
LAST = 20 << 20  # bytes that are read, from the end
# Most lines of a server: a request that was answered, and the state every ten seconds. They have no
# cause.
ALL_IS_WELL = (b' HTTP/1.1" 200', b" [loggers.py:")


@dataclass(frozen=True)
class LogReport:
    """``lines``: all of the log's. ``skipped``: bytes at its beginning that were not read.
    ``cause``: of a failure.
    """

    lines: int
    explanations: tuple[Explanation, ...]
    cause: Explanation | None
    first: First | None
    clues: Clues | None  # where no failure is certain
    skipped: int = 0


def read_log(
    log: BinaryIO, known: Circumstances = UNKNOWN, *, kind: str | None = None
) -> LogReport:
    """The same of an open log, of which the end is read."""
    before, skipped, data = last_of(log)
    return replace(read_lines(text_lines(data), known, kind=kind, before=before), skipped=skipped)


def read_lines(
    lines: Sequence[str],
    known: Circumstances = UNKNOWN,
    *,
    kind: str | None = None,
    before: int = 0,
) -> LogReport:
    """The known causes in a log, and its first exception. ``kind``: build or serve; None: any.

    ``known``: what is known beside the log; what it proves (its memory, its exit code) comes first.
    If that is no failure, neither is what a server logged before it was up: vLLM goes on without a
    plug-in that can't be imported.
    """
    tracker, outlived = Tracker(), frozenset[int]() if known.failed else _outlived(lines)
    of_starts = Tracker(tracker.versions)
    for number, line in enumerate(lines):
        if line:
            (of_starts if number in outlived else tracker).feed(line, before + number + 1)
    first = tracker.first
    about = replace(
        known.beside(first.package if first else ""), failed=known.failed or tracker.raised
    )
    matched = classify(lines, kind=kind, known=about, before=before, outlived=outlived)
    lacking = all(explanation.general or not explanation.failure for explanation in matched)
    told = clues(lines, before, first, tracker.versions) if lacking else None
    proven = (
        likeliest(matched, about, kind="build" if kind == "build" else "serve")
        if known.failed
        else None
    )
    matched = (proven, *matched) if proven and proven not in matched else matched
    return LogReport(before + len(lines), matched, proven, first, told)


def _outlived(lines: Sequence[str]) -> frozenset[int]:
    """The indices of the lines of each run of a server until it was up. A log has several runs if
    it was restarted.
    """
    begin, is_up, indices = 0, False, set[int]()
    for number, line in enumerate(lines):
        if is_up and _BEGINS.search(line):
            begin, is_up = number, False
        if STARTED in line:
            indices |= {*range(begin, number)}
            begin, is_up = number, True
    return frozenset(indices)


def cause_of(
    lines: Sequence[str], known: Circumstances = UNKNOWN, *, service: bool = False
) -> Explanation | None:
    """The cause of a failure from its output; None if no rule matches. ``service``: of a service,
    not of a build.
    """
    return read_lines(
        lines, replace(known, failed=True), kind="serve" if service else "build"
    ).cause


def last_of(log: BinaryIO, size: int = LAST) -> tuple[int, int, bytes]:
    """The last whole lines of a log: the lines and the bytes before them, and their bytes.

    It ends at Ctrl-C, too: a log that is followed has no other end.
    """
    data, before, skipped, piece = bytearray(), 0, 0, b"-"
    while piece:
        try:
            piece = log.read(1 << 20)
        except KeyboardInterrupt:
            piece = b""
        data += piece
        if len(data) > (2 * size if piece else size):
            cut = (
                data.find(b"\n", len(data) - size - 1) + 1 or len(data) - size
            )  # of one endless line, its end
            before, skipped = before + data.count(b"\n", 0, cut), skipped + cut
            del data[:cut]
    return before, skipped, bytes(data)


def text_lines(data: bytes) -> list[str]:
    """The lines of a log without their ends, without colours and without Docker's time stamps.

    Bytes that are not UTF-8 become U+FFFD. A line that only says that all is well is empty.
    """
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [
        ""
        if any(words in line for words in ALL_IS_WELL)
        else _plain(line[:LONGEST].decode("utf-8", "replace"))
        for line in lines
    ]


def _plain(line: str) -> str:
    line = plain_text(line).removesuffix("\r")
    return _TIME.sub("", line) if line[:2] == "20" else line
