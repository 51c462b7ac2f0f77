"""Reading a log: the known causes in its first 2 and its last 20 MiB, and its first exception and
deciding lines there.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO

from envgen.explain import LONGEST, UNKNOWN, Circumstances, Explanation, classify, likeliest
from envgen.explain.first import First, Tracker, is_consequence
from envgen.explain.unknown import STARTED, Clues, clues
from envgen.text import plain_text

# A run of a server: of any, of vLLM, of one of uvicorn.
_BEGINS = re.compile("envgen: starting the server|API server version|Started server process")
_STREAM = re.compile(r"#\d{1,5} |[A-Za-z][\w.-]{0,80} {1,40}\| ")
_STEP_DONE = re.compile(r"#\d{1,5} DONE ")
LAST = 20 << 20  # bytes that are read, from the end
HEAD = 2 << 20  # of a longer log: a crash loop's first cause lies at its beginning
# Most lines of a server: a request that was answered, and the state every ten seconds. They have no
# cause.
ALL_IS_WELL = (b' HTTP/1.1" 200', b" reqs, Waiting: 0 reqs")


@dataclass(frozen=True)
class LogReport:
    """``lines``: all of the log's. ``skipped``: bytes at its beginning that were not read.
    ``cause``: of a failure. ``versions``: of packages that it names.
    """

    lines: int
    explanations: tuple[Explanation, ...]
    cause: Explanation | None
    first: First | None
    clues: Clues | None  # where no failure is certain
    versions: Mapping[str, str]
    skipped: int = 0
    well: bool = False  # a server started or answers, and nothing failed after that


def read_log(
    log: BinaryIO, known: Circumstances = UNKNOWN, *, kind: str | None = None
) -> LogReport:
    """The same of an open log, of which the beginning and the end are read."""
    before, skipped, data, head = ends_of(log)
    report = read_lines(text_lines(data), known, kind=kind, before=before)
    answers = report.well or any(words in data for words in ALL_IS_WELL)
    failed = known.failed or report.first or any(one.failure for one in report.explanations)
    report = replace(report, skipped=skipped, well=answers and not failed)
    if not skipped or report.well:
        return report
    early = read_lines(text_lines(head), kind=kind)
    named = {explanation.rule for explanation in report.explanations}
    certain = [one for one in early.explanations if one.failure and not one.general]
    matched = [*report.explanations, *(one for one in certain if one.rule not in named)]
    return replace(
        report,
        explanations=tuple(sorted(matched, key=lambda one: (not one.failure, one.general))),
        first=report.first or early.first,
        clues=None if certain else report.clues,
        skipped=skipped - len(head),
    )


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
    tracker = Tracker()
    outlived = frozenset[int]() if known.failed else _outlived(lines)
    of_starts = Tracker(tracker.versions)
    for number, line in enumerate(lines):
        if line:
            (of_starts if number in outlived else tracker).feed(line, before + number + 1)
    first = tracker.first
    about = replace(
        known,
        failed=known.failed or tracker.raised,
        facts={"package": first.package if first else "", **known.facts},
    )
    matched = classify(
        lines,
        kind=kind,
        known=about,
        before=before,
        outlived=outlived,
        first=(first.line, first.text)
        if first and "Error" in first.text and not is_consequence(first.text)
        else None,
        last=tracker.last,
    )
    hints = None
    if all(explanation.general or not explanation.failure for explanation in matched):
        hints = clues(lines, before, first, tracker.versions)
    proven = likeliest(matched, about, kind=kind or "serve") if known.failed else None
    matched = (proven, *matched) if proven and proven not in matched else matched
    return LogReport(
        before + len(lines),
        matched,
        proven,
        first,
        hints,
        tracker.versions,
        well=any(STARTED in line for line in lines),
    )


def _outlived(lines: Sequence[str]) -> frozenset[int]:
    """The indices of the lines of each run of a server until it was up, and of each step of a
    build that ended well. A log has several runs if it was restarted.
    """
    ends = [n for n, line in enumerate(lines) if STARTED in line or _STEP_DONE.match(line)]
    closing = frozenset(ends)
    last = max(ends, default=-1)
    streams = defaultdict[str, list[int]](list)  # of a service of Compose, or a step of a build
    for number, line in enumerate(lines[: last + 1]):
        stream = _STREAM.match(line)
        streams[stream[0].rstrip() if stream else ""].append(number)
    up = max((number for number in ends if STARTED in lines[number]), default=0)
    # Until then, clients can't connect.
    indices = {number for number, line in enumerate(lines[:up]) if "onnect" in line}
    for numbers in streams.values():
        begin = 0
        is_up = False
        for place, number in enumerate(numbers):
            if is_up and _BEGINS.search(lines[number]):
                begin = place
                is_up = False
            if number in closing:
                indices.update(numbers[begin:place])
                begin = place
                is_up = True
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


def ends_of(log: BinaryIO, size: int = LAST, first: int = HEAD) -> tuple[int, int, bytes, bytes]:
    """The last whole lines of a log: the lines and the bytes before them, and their bytes; and the
    first bytes before them, in whole lines.

    It ends at Ctrl-C, too: a log that is followed has no other end.
    """
    data = bytearray()
    head = b""
    before = 0
    skipped = 0
    piece = b"-"
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
            if not skipped:
                head = bytes(data[: min(cut, first)])
                head = head[: head.rfind(b"\n") + 1]
            before += data.count(b"\n", 0, cut)
            skipped += cut
            del data[:cut]
    return before, skipped, bytes(data), head


def text_lines(data: bytes) -> list[str]:
    """The lines of a log without their ends, without colours.

    Bytes that are not UTF-8 become U+FFFD. A line that only says that all is well is empty.
    """
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    answered, state = ALL_IS_WELL
    return [
        ""
        if answered in line or state in line
        else plain_text(line[:LONGEST].decode("utf-8", "replace")).removesuffix("\r")
        for line in lines
    ]
