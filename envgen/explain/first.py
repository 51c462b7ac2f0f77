"""The first exception of the first process that failed, for logs in which no rule matches.

vLLM's processes share one log. The one that fails writes its traceback first; its parents follow with longer ones about
the child. So the first traceback that is not about another process has the cause. In a chain of exceptions ("During
handling of ...") the last one counts: it has the message for the user.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

# `(EngineCore_DP0 pid=17) ` or `(Worker_TP0 pid=5) `, then the prefix of vLLM's logger.
_PROCESS = re.compile(r"^\((?P<name>[\w ./:-]{1,60}?) ?pid=(?P<pid>\d{1,9})[^)]{0,40}\) ?")
_LOGGED = re.compile(
    r"^(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) +\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,6})? \[[^\]]{1,120}\] ?"
)
_BEGIN = "Traceback (most recent call last):"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_NAME = r"(?:[A-Za-z_]\w{0,80}\.){0,8}[A-Za-z_]\w{0,80}"
_RAISED = re.compile(rf"^{_NAME}(?:: |:?$)")  # the line of a traceback that names the exception
# Raised because another process or task failed.
_WRAPPER = re.compile(
    r"see (?:root cause|stack trace|the stack trace|above)|root cause above|engine core initialization failed|"
    r"workerproc initialization failed|worker failed with error|enginecore encountered an issue|enginedeaderror|"
    r"failed core proc|executor failed|^(?:asyncio\.(?:exceptions\.)?)?cancellederror|^keyboardinterrupt|^systemexit|"
    r"background loop has errored|childfailederror",
    re.IGNORECASE,
)
_VALIDATION = re.compile(r"\d+ validation errors? for ")
_USAGE = re.compile(r"^[\w./ -]{1,80}: error: \S")
SHOWN = 400  # characters


@dataclass(frozen=True)
class First:
    """The first failure: the process ("" if unknown), its exception, and the line, counted from 1."""

    process: str
    text: str
    line: int

    @property
    def is_consequence(self) -> bool:
        """Whether it only says that another process or task has failed."""
        return bool(_WRAPPER.search(self.text))

    def __str__(self) -> str:
        return f"{self.process}: {self.text}" if self.process else self.text


@dataclass
class _Process:
    """The state of one process's traceback."""

    state: str = ""  # "frames" inside a traceback, "after" its exception, "chained" before the next of its chain
    best: First | None = None  # of the exceptions of this chain
    wants_reason: bool = False  # the next indented line has the reason, as pydantic's does


class Tracker:
    """Reads a log line by line; ``first`` is the first failure so far."""

    def __init__(self) -> None:
        self._processes: dict[str, _Process] = {}
        self._found, self._usage = list[First](), list[First]()
        self._line = 0

    def feed(self, line: str) -> None:
        """Read the next line."""
        self._line += 1
        name, level, text = _read(line[:8192].rstrip("\r\n"))
        if level in ("DEBUG", "INFO", "WARNING"):  # exceptions that were caught
            return
        process = self._processes.setdefault(name, _Process())
        self._found += _follow(process, name, text, self._line)
        if not process.state and _USAGE.match(text):
            self._usage.append(First(name, text.strip()[:SHOWN], self._line))

    @property
    def first(self) -> First | None:
        """The first exception that is not about another process, else any exception."""
        unfinished = [process.best for process in self._processes.values() if process.best]
        found = sorted([*self._found, *unfinished], key=lambda exception: exception.line)
        causes = [exception for exception in found if not _WRAPPER.search(exception.text)]
        return next(iter([*causes, *self._usage, *found]), None)


def first_exception(lines: Iterable[str]) -> First | None:
    """The first failure in a whole log."""
    tracker = Tracker()
    for line in lines:
        tracker.feed(line)
    return tracker.first


def _read(line: str) -> tuple[str, str, str]:
    """The process, the log level ("" without a logger) and the text of a line."""
    name = ""
    if found := _PROCESS.match(line):
        name, line = f"{found['name']} pid={found['pid']}", line[found.end() :]
    level = ""
    if found := _LOGGED.match(line):
        level, line = found["level"], line[found.end() :]
    return name, level, line


def _follow(process: _Process, name: str, text: str, number: int) -> Iterator[First]:
    """Read one line of a process; yield the chain's exception once the chain is complete."""
    plain = text.strip()
    if plain.endswith(_BEGIN):
        if process.state == "after":  # a new failure, not a link of the chain
            yield from _complete(process)
        process.state = "frames"
    elif process.state == "frames" and (found := _RAISED.match(text)):
        if process.best is None or not _WRAPPER.search(text):
            process.best = First(name, text[:SHOWN], number)
        rest = text[found.end() :]
        process.wants_reason, process.state = bool(_VALIDATION.search(rest)) or rest.rstrip().endswith(":"), "after"
    elif process.state in ("after", "chained"):
        if any(words in plain for words in _CHAINED):
            process.state = "chained"
        elif process.wants_reason and process.best and plain and text[0].isspace():
            reason = plain.partition(" [type=")[0].removeprefix("Value error, ")
            kind = process.best.text.partition(":")[0].rpartition(".")[2]
            process.best, process.wants_reason = First(name, f"{kind}: {reason}"[:SHOWN], number), False
        elif plain and process.state == "after" and not process.wants_reason and not text[0].isspace():
            yield from _complete(process)


def _complete(process: _Process) -> Iterator[First]:
    best, process.best, process.state = process.best, None, ""
    if best:
        yield best
