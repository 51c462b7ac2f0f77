"""Lines of a log of any size, as they come: from a file, or from a program that is still writing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

PIECE = 1 << 20  # bytes read at once
LONGEST = 1 << 20  # bytes kept of one line; the rest of it is passed over


class Source(Protocol):
    """Something that gives what is there by now: ``read1`` of a binary file or of a pipe."""

    def read1(self, size: int = -1, /) -> bytes: ...


def pieces(source: Source) -> Iterator[list[str]]:
    """Whole lines in lists, each list as soon as it is there; bytes that are not UTF-8 become U+FFFD.

    Line feeds end lines; carriage returns of progress bars do too, within one line of the log, so the numbers are
    those of an editor. Memory stays within PIECE + LONGEST, however long a line is.
    """
    rest, cut = b"", False
    while piece := source.read1(PIECE):
        *whole, tail = piece.split(b"\n")
        if whole:
            first = b"" if cut else whole[0]
            yield [_text(rest + first), *map(_text, whole[1:])]
            rest, cut = b"", False
        if not cut:
            rest += tail
            cut = len(rest) > LONGEST
            rest = rest[:LONGEST]
    if rest:
        yield [_text(rest)]


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace").rstrip("\r")
