"""Run records: JSON lines, one file a run, each sample on disk before the next is measured.

``<folder>/<utc>-<kind>-<id>.jsonl``: a start line, a line a sample, an end line. A kill at any moment leaves whole
lines and at most one that is cut off. A file without an end line is a run that was interrupted, or that is still
running: its writer holds an advisory lock on it. What a tool wrote itself is beside it, in ``<name>.raw/``.

A sample names its cell by ``prompt_tokens``, ``output_tokens``, ``context_tokens`` (tokens that were in the context
before) and ``concurrency``, and its figures by the names in ``METRICS``. ``unit`` is ``repeat`` (one repetition of the
cell), ``request`` (one request of it) or ``aggregate`` (a mean that another tool made, with ``spread`` and ``runs``
where they are known). ``error`` takes a sample out of the figures.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from envgen import files
from envgen.engine.base import MISSHAPEN, read_json
from envgen.errors import Place, ResultsError, UsageError
from envgen.redact import redact_secrets
from envgen.text import counted, reason_of

FORMAT = 1  # a reader refuses a higher number; a change of meaning raises it
SUFFIX = ".jsonl"
RUNNING, INTERRUPTED, IMPORTED = "running", "interrupted", "imported"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_LATEST = re.compile(r"latest(?:~(\d{1,6}))?")


@dataclass(frozen=True)
class Metric:
    """A figure that can be compared. ``by_output``: it depends on the reply's length, not on the prompt alone."""

    name: str
    unit: str
    label: str
    more_is_better: bool
    by_output: bool


METRICS = {
    one.name: one
    for one in (
        Metric("prefill_tps", "t/s", "prefill", True, False),
        Metric("decode_tps", "t/s", "decode", True, True),
        Metric("reply_tps", "t/s", "whole reply", True, True),
        Metric("total_tps", "t/s", "all tokens", True, True),
        Metric("requests_per_s", "1/s", "requests", True, True),
        Metric("ttft_ms", "ms", "time to first token", False, False),
        Metric("ttfr_ms", "ms", "time to first response", False, False),
        Metric("itl_ms", "ms", "between tokens", False, True),
        Metric("latency_ms", "ms", "whole request", False, True),
    )
}


@dataclass(frozen=True)
class Record:
    """One run. ``outcome`` is what the run said at its end, else ``running`` or ``interrupted``; times are UTC.

    ``torn``: the last line is cut off.
    """

    path: Path
    id: str
    kind: str
    started: datetime
    environment: Mapping[str, Any]
    parameters: Mapping[str, Any]
    outcome: str
    summary: Mapping[str, Any]
    samples: tuple[Mapping[str, Any], ...] = ()
    ended: datetime | None = None
    torn: bool = False

    @property
    def title(self) -> str:
        """Profile and variant, the label of imported figures, else the model."""
        imported = self.environment.get("imported")
        if isinstance(imported, Mapping):
            return str(imported.get("label") or self.id)
        words = [str(self.environment[key]) for key in ("profile", "variant") if self.environment.get(key)]
        return " ".join(words) or str(self.environment.get("model") or self.id)


# --- writing ----------------------------------------------------------------------------------------------------------


class Run:
    """A run that is being recorded. Left before ``end``, it stays an interrupted run with all samples so far."""

    def __init__(self, path: Path, ident: str, descriptor: int) -> None:
        self.path, self.id = path, ident
        self.samples = 0
        self._descriptor = descriptor
        self._began = time.monotonic()

    def sample(self, data: Mapping[str, Any]) -> None:
        """Append one measurement. ResultsError when it can't be written; what was written before is kept."""
        self._append({"type": "sample", "at": round(time.monotonic() - self._began, 6), "data": data})
        self.samples += 1

    def raw(self, name: str, content: bytes) -> None:
        """Keep what a tool wrote, beside the record."""
        try:
            files.write(self.path.with_suffix(".raw") / name, content, within=self.path.parent)
        except OSError as error:
            raise self._trouble(error) from error

    def end(self, outcome: str, summary: Mapping[str, Any]) -> None:
        """Write the end line and bring everything to the disk."""
        self._append(_end(datetime.now(timezone.utc), outcome, summary))
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            if error.errno != errno.EINVAL:  # a file system that knows no fsync
                raise self._trouble(error) from error

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def _append(self, line: Mapping[str, Any]) -> None:
        """One line. Half a line helps no reader, so a write that fails goes back to the last whole one."""
        whole, rest = os.fstat(self._descriptor).st_size, encode(line)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, whole)
            raise self._trouble(error) from error

    def _trouble(self, error: OSError) -> ResultsError:
        full = error.errno in _FULL
        what = "there is no space left for the results" if full else f"can't write results: {error}"
        return ResultsError(
            f"{what}; kept {counted(self.samples, 'sample')} of run {self.id} in {self.path}",
            hint="free some space on that file system" if full else "",
        )


def start(folder: Path, kind: str, environment: Mapping[str, Any], parameters: Mapping[str, Any]) -> Run:
    """Begin a record in ``folder`` (made when missing). Secrets are not written. ResultsError when it can't be."""
    time.sleep(0.001)  # names hold milliseconds: two runs in one would sort by their random ids
    now, ident = datetime.now(timezone.utc), secrets.token_hex(4)
    try:
        # With its first line, or not at all: a run that is killed here leaves no empty record.
        path = _create(folder, now, kind, ident, [_head(ident, kind, now, environment, parameters)])
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise _cannot(folder, error) from error
    with contextlib.suppress(OSError):  # a file system without locks: the run counts as interrupted until it has ended
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    return Run(path, ident, descriptor)


def write_imported(
    folder: Path, label: str, when: datetime, environment: Mapping[str, Any], parameters: Mapping[str, Any],
    samples: Sequence[Mapping[str, Any]],
) -> tuple[Path, bool]:  # fmt: skip
    """A whole record at once; its path and whether it is new: the id is a digest of what was measured."""
    measured = {name: value for name, value in environment.items() if name != "imported"}
    content = b"".join(encode(one) for one in ({"label": label, "when": utc(when), **measured}, parameters, *samples))
    ident = hashlib.sha256(content).hexdigest()[:8]
    lines = [_head(ident, IMPORTED, when, environment, parameters)]
    lines += [{"type": "sample", "at": 0, "data": data} for data in samples]
    try:
        return _create(folder, when, IMPORTED, ident, [*lines, _end(when, IMPORTED, {})]), True
    except FileExistsError as error:
        return Path(error.filename), False
    except OSError as error:
        raise _cannot(folder, error) from error


def _create(folder: Path, when: datetime, kind: str, ident: str, lines: Sequence[Mapping[str, Any]]) -> Path:
    path = folder / f"{re.sub('[-:]', '', utc(when))}-{kind}-{ident}{SUFFIX}"
    folder.mkdir(parents=True, exist_ok=True)
    files.write(path, b"".join(map(encode, lines)), new=True)
    return path


def _head(
    ident: str, kind: str, when: datetime, environment: Mapping[str, Any], parameters: Mapping[str, Any]
) -> dict[str, Any]:
    told = {"environment": environment, "parameters": parameters}
    clean: dict[str, Any] = json.loads(redact_secrets(encode(told).decode()))
    return {"type": "start", "format": FORMAT, "id": ident, "kind": kind, "started": utc(when), **clean}


def _end(when: datetime, outcome: str, summary: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "end", "ended": utc(when), "outcome": outcome, "summary": summary}


def _cannot(folder: Path, error: OSError) -> ResultsError:
    hint = "choose a writable folder with free space: --results DIR"
    return ResultsError(f"can't write results into {folder}: {reason_of(error)}", hint=hint)


def utc(moment: datetime) -> str:
    """``2026-01-09T16:25:01.123Z``."""
    return moment.astimezone(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def encode(line: Mapping[str, Any]) -> bytes:
    """One line."""
    text = json.dumps(plain(line), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace") + b"\n"


def plain(value: Any) -> Any:
    """A value as JSON has it: NaN and infinity are the texts NaN, Infinity and -Infinity."""
    return json.loads(json.dumps(value, default=str), parse_constant=str)


# --- reading ----------------------------------------------------------------------------------------------------------


def load(path: Path, *, whole: bool = True) -> Record:
    """Read a record, also of a run that is going on or was interrupted. ResultsError names file and line.

    Not ``whole``: its first line and its last one alone, for a list of many.
    """
    try:
        with files.opened(path, follow=False) as file:
            held = _is_held(file.fileno())
            *lines, rest = file.read().split(b"\n")
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file", hint="envgen results list") from None
    except OSError as error:
        raise ResultsError(f"can't be read: {reason_of(error)}", place=Place(str(path))) from None
    number, outcome = 1, RUNNING if held else INTERRUPTED
    samples, summary, ended = [], {}, None
    try:
        first = read_json(lines[0] if lines else rest)
        if first["type"] != "start" or first["format"] != FORMAT:
            raise ValueError(f"not the start of a run, or not of format {FORMAT}, which this envgen reads")
        later = lines[1:] if whole else lines[1:][-1:]
        for number, text in enumerate(later, len(lines) - len(later) + 1):  # noqa: B007 - of the line that is wrong
            line = read_json(text)
            if ended is not None or line["type"] not in ("sample", "end"):
                raise ValueError("neither a sample nor the end of the run")
            if line["type"] == "sample":
                samples.append(dict(line["data"]))
            else:
                outcome, summary, ended = str(line["outcome"]), dict(line["summary"]), _moment(line["ended"])
        return Record(path, str(first["id"]), str(first["kind"]), _moment(first["started"]), dict(first["environment"]),
                      dict(first["parameters"]), outcome, summary, tuple(samples), ended, bool(rest))  # fmt: skip
    except MISSHAPEN as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        hint = "the file is damaged, or not a run record of this envgen"
        raise ResultsError(f"this is not a line of a run record: {what}", hint=hint,
                           place=Place(str(path), number, 1)) from None  # fmt: skip


def _moment(text: Any) -> datetime:
    return datetime.fromisoformat(str(text).replace("Z", "+00:00")).astimezone(timezone.utc)


def _is_held(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def runs(folder: Path) -> tuple[list[Record], list[str]]:
    """The first and last line of each record, oldest first, and what could not be read. Links are not followed."""
    found, bad = [], []
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            found.append(load(path, whole=False))
        except (ResultsError, UsageError) as error:
            bad.append(f"{path.name}: {error.problems[0].message}")
    return sorted(found, key=lambda one: (one.started, one.path.name)), bad


def resolve(folder: Path, name: str) -> Path:
    """The file that ``name`` means: ``latest``, ``latest~2``, the beginning of an id, or a path."""
    if name.endswith(SUFFIX):
        return next((path for path in (Path(name), folder / name) if path.exists()), Path(name))
    entries, _ = runs(folder)
    if not entries:
        raise UsageError(f"no runs in {folder}", hint="envgen results list --folder DIR lists those of another folder")
    if latest := _LATEST.fullmatch(name):
        back = int(latest[1] or 0)
        if back >= len(entries):
            raise UsageError(f"{name}: there are only {len(entries)} runs in {folder}", hint="envgen results list")
        return entries[-1 - back].path
    meant = [one for one in entries if name and one.id.startswith(name)]
    if len(meant) == 1:
        return meant[0].path
    if meant:
        listed = ", ".join(f"{one.id} ({one.kind})" for one in meant[:8])
        raise UsageError(f"{name!r} means {len(meant)} runs: {listed}", hint="give more letters of the id")
    raise UsageError(f"no run {name!r} in {folder}", hint="envgen results list")
