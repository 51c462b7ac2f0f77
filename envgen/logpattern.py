"""Patterns of a profile for a log (`ready.expect`, `ready.forbid`), matched in linear time.

The lines come from a container, and a pattern that backtracks could keep ``up`` busy forever. RE2 has no backtracking,
and Python's syntax except look-around, back-references and ``\\Z``, which the project file may not use.
"""

from __future__ import annotations

import re2

LONGEST_LINE = 20_000  # characters; the rest is ignored


class LogPattern:
    """One compiled pattern. Raises ValueError for an invalid one."""

    def __init__(self, text: str) -> None:
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
