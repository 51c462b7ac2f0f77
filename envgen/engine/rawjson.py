"""Reads what ``buildx build --progress=rawjson`` writes, into steps and typed events. Never fails on odd input."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

# Enough of a step's output to show and to classify; compilers write their reason long before they end.
KEPT_LINES = 2000
_INTERNAL = re.compile(r"^(\[internal\]|\[auth\]|exporting |resolving |\[context |importing |preparing )")
_STAGE = re.compile(r"^\[([^\]]*?)\s*\d+/\d+\] ")
_FLAGS = re.compile(r"(--(mount|network|security|chmod|chown|link)(=\S+)?\s+)+")


@dataclass
class Step:
    """One vertex of the build: an instruction of the Dockerfile, or a chore of BuildKit (``internal``)."""

    digest: str
    name: str
    number: int = 0
    started: float | None = None
    completed: float | None = None
    cached: bool = False
    error: str = ""
    status: str = ""
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))

    @property
    def internal(self) -> bool:
        return bool(_INTERNAL.match(self.name))

    @property
    def title(self) -> str:
        """The instruction in one line, without BuildKit's own numbers and the flags of mounts."""
        stage = _STAGE.match(self.name)
        text = " ".join(self.name[stage.end() if stage else 0 :].split())
        word, _, rest = text.partition(" ")
        text = f"{word} {_FLAGS.sub('', rest, count=1) if _FLAGS.match(rest) else rest}".strip()
        return f"{stage[1]}: {text}" if stage and stage[1] else text

    @property
    def seconds(self) -> float:
        if self.started is None or self.completed is None:
            return 0.0
        return max(0.0, self.completed - self.started)

    @property
    def failed(self) -> bool:
        """True for the step that broke, not for those that were called off because of it."""
        return bool(self.error) and "context canceled" not in self.error

    @property
    def exit_code(self) -> int | None:
        """The exit code of its command, where it had one."""
        found = re.search(r"exit code: (\d+)", self.error)
        return int(found[1]) if found else None


@dataclass(frozen=True)
class Started:
    step: Step


@dataclass(frozen=True)
class Done:
    step: Step


@dataclass(frozen=True)
class Line:
    """A line that a step's command wrote."""

    step: Step
    text: str


@dataclass(frozen=True)
class Status:
    """How far a download or an export is; also in ``step.status``."""

    step: Step
    text: str


@dataclass(frozen=True)
class Note:
    """Text of buildx itself: warnings of the Dockerfile, and errors that belong to no step."""

    text: str
    warning: bool = False


Event = Started | Done | Line | Status | Note


class Progress:
    """All steps of one build, as known so far."""

    def __init__(self) -> None:
        self.steps: dict[str, Step] = {}
        self.notes: list[str] = []
        self._partial: dict[tuple[str, str], str] = {}

    @property
    def visible(self) -> list[Step]:
        """The steps that a user wrote, in the order in which they are numbered or known."""
        return [step for step in self.steps.values() if not step.internal]

    @property
    def total(self) -> int:
        return len(self.visible)

    @property
    def running(self) -> list[Step]:
        return [step for step in self.steps.values() if step.started is not None and step.completed is None]

    @property
    def failed(self) -> Step | None:
        return next((step for step in self.steps.values() if step.failed), None)

    def feed(self, line: bytes) -> list[Event]:
        """The events of one line of buildx's output."""
        if line.lstrip().startswith(b"{"):
            try:
                document = json.loads(line)
            except (ValueError, RecursionError):
                document = None
            if isinstance(document, dict):
                return list(self._document(document))
        text = line.decode(errors="replace").rstrip()
        self.notes.append(text)
        return [Note(text)] if text else []

    def _document(self, document: dict[str, Any]) -> Iterator[Event]:
        for vertex in _dicts(document.get("vertexes")):
            yield from self._vertex(vertex)
        for status in _dicts(document.get("statuses")):
            yield from self._status(status)
        for log in _dicts(document.get("logs")):
            yield from self._log(log)
        for warning in _dicts(document.get("warnings")):
            text = _decoded(warning.get("short"))
            if text:
                yield Note(text, warning=True)

    def _vertex(self, vertex: dict[str, Any]) -> Iterator[Event]:
        step = self._step(vertex)
        started, completed = seconds_of(vertex.get("started")), seconds_of(vertex.get("completed"))
        error = vertex.get("error")
        was_running = step.started is not None and step.completed is None
        step.cached = bool(vertex.get("cached"))
        step.error = error if isinstance(error, str) else ""
        if started is not None:
            step.started, step.completed = started, completed
            if not was_running:
                self._number(step)
                yield Started(step)
        if completed is not None:
            yield from self._flush(step)
            yield Done(step)

    def _number(self, step: Step) -> None:
        if not step.number and not step.internal:
            step.number = 1 + max((other.number for other in self.steps.values()), default=0)

    def _status(self, status: dict[str, Any]) -> Iterator[Event]:
        step = self.steps.get(str(status.get("vertex")))
        current, total = status.get("current"), status.get("total")
        if step is None or not isinstance(current, int):
            return
        share = f" {100 * current // total}%" if isinstance(total, int) and total > 0 else ""
        step.status = f"{status.get('id') or status.get('name') or ''}{share}"[:80]
        yield Status(step, step.status)

    def _log(self, log: dict[str, Any]) -> Iterator[Event]:
        step = self.steps.get(str(log.get("vertex")))
        if step is None:
            step = self._step({"digest": str(log.get("vertex")), "name": "(unknown step)"})
        key = (step.digest, str(log.get("stream")))
        *lines, rest = (self._partial.get(key, "") + _decoded(log.get("data"))).split("\n")
        if len(rest) > 1 << 16:
            lines, rest = [*lines, rest], ""
        self._partial[key] = rest
        for text in lines:
            yield self._line(step, text)

    def _flush(self, step: Step) -> Iterator[Event]:
        for key in [key for key in self._partial if key[0] == step.digest]:
            rest = self._partial.pop(key)
            if rest.strip():
                yield self._line(step, rest)

    def _line(self, step: Step, text: str) -> Line:
        # A progress bar rewrites its line: what a terminal would show at the end is what counts.
        shown = text.rstrip("\r").rsplit("\r", 1)[-1]
        step.lines.append(shown)
        return Line(step, shown)

    def _step(self, vertex: dict[str, Any]) -> Step:
        digest, name = str(vertex.get("digest")), vertex.get("name")
        step = self.steps.get(digest)
        if step is None:
            step = self.steps[digest] = Step(digest, name if isinstance(name, str) else "")
        elif isinstance(name, str) and name:
            step.name = name
        return step


def seconds_of(timestamp: Any) -> float | None:
    """Seconds since 1970 of an RFC 3339 time with nanoseconds, as Go writes it; None for anything else."""
    from calendar import timegm

    if not isinstance(timestamp, str):
        return None
    found = re.fullmatch(
        r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(\.\d+)?(?:Z|([+-])(\d\d):(\d\d))", timestamp, re.ASCII
    )
    if not found:
        return None
    whole = timegm((*(int(part) for part in found.groups()[:6]), 0, 0, 0))
    offset = (int(found[9]) * 3600 + int(found[10]) * 60) * (1 if found[8] == "+" else -1) if found[8] else 0
    return whole - offset + float(found[7] or 0)


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _decoded(data: Any) -> str:
    """Go writes bytes as base64."""
    if not isinstance(data, str):
        return ""
    try:
        return base64.b64decode(data, validate=True).decode(errors="replace")
    except (binascii.Error, ValueError):
        return data
