"""What a command line wants on standard output, and the document that a failure is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from envgen.errors import EnvgenError


@dataclass
class Output:
    """``json``: `--json` was given. ``printed``: the one document of standard output is out."""

    json: bool = False
    printed: bool = False


def document(error: BaseException | str, code: int, hint: str = "") -> Mapping[str, Any]:
    """A failure: ``error``, ``code`` (the exit code), ``hint`` or null, and all problems with their places."""
    if not isinstance(error, EnvgenError):
        return {"error": str(error), "code": int(code), "hint": hint or None}
    hints = (problem.hint for problem in error.problems if problem.hint)
    problems = [
        {
            "message": problem.message,
            "hint": problem.hint or None,
            "file": problem.place.file if problem.place else None,
            "line": (problem.place.line or None) if problem.place else None,
            "column": (problem.place.column or None) if problem.place else None,
            "key": (problem.place.key or None) if problem.place else None,
        }
        for problem in error.problems
    ]
    return {
        **error.details,
        "error": "\n".join(f"{one.place}: {one.message}" if one.place else one.message for one in error.problems),
        "code": int(code),
        "hint": next(hints, None),
        "problems": problems,
    }
