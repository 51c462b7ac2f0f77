"""Where no rule knows a failure: the first exception of the first process that failed.

vLLM is several processes that write one log. The one that fails writes its traceback first; its parents follow, each
with a longer one about the child. So the first traceback that is not about another process has the cause. Of exceptions
that were raised while another was handled the last one counts: it was written for people.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

# `(EngineCore_DP0 pid=17) ` or `(Worker_TP0 pid=5) `, then what vLLM's logger writes before a line.
_SPEAKER = re.compile(r"^\((?P<name>[\w ./:-]{1,60}?) ?pid=(?P<pid>\d{1,9})[^)]{0,40}\) ?")
_LOGGED = re.compile(
    r"^(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) +\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,6})? \[[^\]]{1,120}\] ?"
)
_BEGIN = "Traceback (most recent call last):"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_NAME = r"(?:[A-Za-z_]\w{0,80}\.){0,8}[A-Za-z_]\w{0,80}"
_RAISED = re.compile(rf"^{_NAME}(?:: |:?$)")  # the first line of a traceback that is not indented
# Raised for another process's failure, or by asyncio for a neighbour's.
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
    """What failed first: the process ("" where the log names none), its exception, and the line, counted from 1."""

    process: str
    text: str
    line: int

    def __str__(self) -> str:
        return f"{self.process}: {self.text}" if self.process else self.text


@dataclass
class _Speaker:
    """One process, as far as its traceback has come."""

    state: str = ""  # "frames" while a traceback is read, "after" its exception, "chained" before the next of its chain
    best: First | None = None  # of the exceptions of this chain
    wants_reason: bool = False  # the next indented line says what is wrong, as pydantic's does


class Tracker:
    """Reads a log line by line; ``first`` is the first failure so far."""

    def __init__(self) -> None:
        self._speakers: dict[str, _Speaker] = {}
        self._found, self._usage = list[First](), list[First]()
        self._line = 0

    def feed(self, line: str) -> None:
        """The next line."""
        self._line += 1
        name, level, text = _read(line[:8192].rstrip("\r\n"))
        if level in ("DEBUG", "INFO", "WARNING"):  # what was caught
            return
        speaker = self._speakers.setdefault(name, _Speaker())
        self._found += _follow(speaker, name, text, self._line)
        if not speaker.state and _USAGE.match(text):
            self._usage.append(First(name, text.strip()[:SHOWN], self._line))

    @property
    def first(self) -> First | None:
        """The first exception that is not about another process, else one that is; None where there is neither."""
        unfinished = [one.best for one in self._speakers.values() if one.best]
        found = sorted([*self._found, *unfinished], key=lambda one: one.line)
        causes = [one for one in found if not _WRAPPER.search(one.text)]
        return next(iter([*causes, *self._usage, *found]), None)


def first_exception(lines: Iterable[str]) -> First | None:
    """What failed first in a whole log."""
    tracker = Tracker()
    for line in lines:
        tracker.feed(line)
    return tracker.first


def _read(line: str) -> tuple[str, str, str]:
    """Who says it, at which level ("" for what no logger wrote), and what."""
    name = ""
    if found := _SPEAKER.match(line):
        name, line = f"{found['name']} pid={found['pid']}", line[found.end() :]
    level = ""
    if found := _LOGGED.match(line):
        level, line = found["level"], line[found.end() :]
    return name, level, line


def _follow(speaker: _Speaker, name: str, text: str, number: int) -> Iterator[First]:
    """Take in one line of a process; yield the chain's exception when it is complete."""
    plain = text.strip()
    if plain == _BEGIN or plain.endswith(_BEGIN):
        if speaker.state == "after":  # another failure, no link of the chain
            yield from _complete(speaker)
        speaker.state = "frames"
    elif speaker.state == "frames" and (found := _RAISED.match(text)):
        if speaker.best is None or not _WRAPPER.search(text):
            speaker.best = First(name, text[:SHOWN], number)
        rest = text[found.end() :]
        speaker.wants_reason, speaker.state = bool(_VALIDATION.search(rest)) or rest.rstrip().endswith(":"), "after"
    elif speaker.state in ("after", "chained"):
        if any(words in plain for words in _CHAINED):
            speaker.state = "chained"
        elif speaker.wants_reason and speaker.best and plain and text[0].isspace():
            reason = plain.partition(" [type=")[0].removeprefix("Value error, ")
            kind = speaker.best.text.partition(":")[0].rpartition(".")[2]
            speaker.best, speaker.wants_reason = First(name, f"{kind}: {reason}"[:SHOWN], number), False
        elif plain and speaker.state == "after" and not speaker.wants_reason and not text[0].isspace():
            yield from _complete(speaker)


def _complete(speaker: _Speaker) -> Iterator[First]:
    best, speaker.best, speaker.state = speaker.best, None, ""
    if best:
        yield best
