"""The errors that a user sees: what, where, what to do; an exit code for each class.

Only ``envgen.cli.program`` turns them into output and an exit code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from types import MappingProxyType
from typing import TypeVar

from envgen.binding import JsonDict, JsonObject
from envgen.redact import redact_secrets
from envgen.text import last_printed, masked, visible

E = TypeVar("E", bound="EnvgenError")


class ExitCode(IntEnum):
    """Exit codes of the program (docs/troubleshooting.md). They never change their meaning."""

    OK = 0
    FINDINGS = 1  # a check ran and failed: drift, doctor errors, unknown module
    USAGE = 2  # bad project file, bad option, bad argument
    ENGINE = 3  # Docker is absent, stopped, too old or forbidden
    BUILD = 4  # an image build failed
    SERVICE = 5  # a service did not start or did not become ready
    REFUSED = 6  # a guard refused to act: held lock, path outside its root, port taken
    # an input could not be resolved: envgen.lock is unchanged, or lacks only revisions of models
    LOCK = 7
    RESULTS = 8  # the record of a run could not be written or read
    INTERNAL = 70  # a defect of envgen itself (sysexits EX_SOFTWARE)
    INTERRUPTED = 130


@dataclass(frozen=True)
class Place:
    """A position in a file. ``line`` and ``column`` count from 1; 0 means "the whole file"."""

    file: str
    line: int = 0
    column: int = 0
    key: str = ""
    text: str = ""  # the source line itself, for the caret

    def __str__(self) -> str:
        parts = [self.file]
        if self.line:
            parts += [str(self.line), str(self.column)]
        # Somebody pastes a token as a name, too.
        head = redact_secrets(visible(":".join(parts)))
        return f"{head}: {redact_secrets(visible(self.key))}" if self.key else head


@dataclass(frozen=True)
class Problem:
    """One problem: its message, its position, and what to do about it."""

    message: str
    place: Place | None = None
    hint: str = ""

    @property
    def sentence(self) -> str:
        """The message alone, after its place."""
        return f"{self.place}: {self.message}" if self.place else self.message

    def __str__(self) -> str:
        message = visible(self.message, lines=True)
        lines = [f"{self.place}: {message}" if self.place else message]
        # Not for a line with a secret, whatever is wrong with it.
        if (
            self.place
            and self.place.line
            and self.place.text
            and redact_secrets(self.place.text) == self.place.text
        ):
            # Tabs count as one column in YAML marks, so the caret line repeats them to stay
            # aligned.
            lead = "".join(
                "\t" if c == "\t" else " " for c in self.place.text[: self.place.column - 1]
            )
            lines += [f"    {masked(self.place.text)}", f"    {lead}^"]
        if self.hint:
            lines.append(f"    hint: {visible(self.hint, lines=True)}")
        return "\n".join(lines)


class EnvgenError(Exception):
    """Base of every error that the user can fix. ``str(error)`` is printed."""

    exit_code: ExitCode = ExitCode.USAGE
    details: JsonObject = MappingProxyType({})  # more keys for the document of `--json`

    def __init__(
        self,
        message: str = "",
        *,
        hint: str = "",
        place: Place | None = None,
        problems: Sequence[Problem] = (),
    ) -> None:
        """``problems``: instead of ``message``, ``hint`` and ``place``."""
        self.problems: tuple[Problem, ...] = tuple(problems) or (Problem(message, place, hint),)
        super().__init__(self.message)

    @property
    def message(self) -> str:
        """The message of its first problem."""
        return self.problems[0].message

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


def named(where: str, error: E) -> E:
    """The same error, with the place in front."""
    first, *rest = error.problems
    error.problems = (replace(first, message=f"{where}: {first.message}"), *rest)
    return error


class ProjectError(EnvgenError):
    """The project file (or an override of it) is wrong. Has all of its problems."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("invalid project", problems=problems)

    def __str__(self) -> str:
        count = len(self.problems)
        tail = f"\n{count} problems" if count > 1 else ""
        return super().__str__() + tail


class UsageError(EnvgenError):
    """A command was asked for something that doesn't exist: a profile, a service, a module."""


class NotFoundError(EnvgenError):
    """A named thing does not exist (a JIT module, a running container)."""

    exit_code = ExitCode.FINDINGS


class EngineError(EnvgenError):
    """Docker itself is the trouble: absent, stopped, too old, no permission. ``command`` fixes it,
    or shows more.
    """

    exit_code = ExitCode.ENGINE

    def __init__(self, message: str, *, hint: str = "", command: str = "docker version") -> None:
        self.command = command
        super().__init__(message, hint=hint)


class EngineTimeout(EngineError):
    """The engine did not answer in time; it may answer the next request."""


class BuildError(EnvgenError):
    """An image build failed."""

    exit_code = ExitCode.BUILD


class ServiceError(EnvgenError):
    """A service did not start, or did not answer in time."""

    exit_code = ExitCode.SERVICE


class RefusedError(EnvgenError):
    """A check refused to go on; nothing was changed."""

    exit_code = ExitCode.REFUSED


class LockError(EnvgenError):
    """Inputs could not be resolved. Has all of them."""

    exit_code = ExitCode.LOCK


class ResultsError(EnvgenError):
    """The record of a run could not be written (no space, no right) or read (damaged, foreign)."""

    exit_code = ExitCode.RESULTS


class ProcessError(EngineError):
    """A program that envgen ran failed: argv, exit code and the end of its stderr."""

    def __init__(self, argv: Sequence[str], code: int, stderr: str, *, hint: str = "") -> None:
        self.argv = tuple(argv)
        self.code = code
        self.stderr = stderr
        shown = f"`{' '.join(argv[:4])}{' ...' if len(argv) > 4 else ''}`"
        super().__init__(f"{shown} ended with {code}: {last_printed(stderr, code, 15)}", hint=hint)


@dataclass
class OutputMode:
    """``json``: `--json` was given. ``printed``: the document is already on stdout."""

    json: bool = False
    printed: bool = False


def document(error: BaseException | str, code: int) -> JsonObject:
    """A failure: ``error``, ``code`` (the exit code), ``hint`` or null, and all problems with their
    places.
    """
    if not isinstance(error, EnvgenError):
        return {"error": str(error), "code": int(code), "hint": None}

    return {
        **error.details,
        "error": "\n".join(one.sentence for one in error.problems),
        "code": int(code),
        "hint": next((problem.hint for problem in error.problems if problem.hint), None),
        "problems": [as_data(problem) for problem in error.problems],
    }


def as_data(problem: Problem) -> JsonDict:
    """A problem for `--json`."""
    place = problem.place or Place("")
    return {
        "message": problem.message,
        "hint": problem.hint or None,
        "file": redact_secrets(place.file) or None,
        "key": redact_secrets(place.key) or None,
        "line": place.line or None,
        "column": place.column or None,
    }
