"""Patterns of a profile for a log (`ready.expect`, `ready.forbid`), matched in linear time.

Python's ``re`` backtracks, and no time limit of ``up`` could end it: while it searches, no other
thread of the process runs. ``(\\w+\\s?)+ready$``, as an owner may well write it, takes it 10
seconds for a line of 26 letters and four times as long for every two more; RE2, which has no
backtracking, less than a millisecond for 64 kB (measured). RE2 has Python's syntax except
look-around, back-references and ``\\Z``, which the project file may not use.
"""

from __future__ import annotations

LONGEST_LINE = 20_000  # characters; the rest is ignored


class LogPattern:
    """One compiled pattern. Raises ValueError for an invalid one."""

    def __init__(self, text: str) -> None:
        import re2  # with its C++ library, for profiles with a pattern

        options = re2.Options()
        options.log_errors = False
        try:
            self._pattern = re2.compile(text.encode("utf-8"), options)
        except re2.error as error:
            reason = error.args[0] if error.args else b""
            shown = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
            raise ValueError(shown) from None

    def found_in(self, line: str) -> bool:
        """Whether the pattern matches anywhere in ``line``."""
        return self._pattern.search(line[:LONGEST_LINE].encode("utf-8", "replace")) is not None
