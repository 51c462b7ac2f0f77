"""Why an operation did nothing."""

from __future__ import annotations


class Fault(Exception):
    """Why nothing was done: ``refused``, ``not_found`` or ``failed``, one sentence, and what the host wants to know."""

    def __init__(self, kind: str, message: str, **data: object) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.data = data
