"""The patterns that a profile looks for in a log (`ready.expect`, `ready.forbid`), matched in linear time.

The lines come from a container, so a pattern that backtracks could keep ``up`` busy for ever. RE2 has no backtracking:
its time is linear in the line, whatever the pattern. It knows Python's syntax except look-around, back-references and
``\\Z``; the project file is refused where a pattern needs them.
"""

from __future__ import annotations

import re2

LONGEST_LINE = 20_000  # characters; what follows is not looked at


class LogPattern:
    """One compiled pattern. Raises ValueError with a sentence when it is not one."""

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
        """Does ``line`` match anywhere?"""
        return self._pattern.search(line[:LONGEST_LINE].encode("utf-8", "replace")) is not None
