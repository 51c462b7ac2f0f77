"""Records of runs: a file of JSON lines for each run, with each sample on disk before the next is
measured.

``<folder>/<utc>-<kind>-<id>.jsonl``: a start line, a line for each sample, an end line. A file
without an end line is of a run that was interrupted or still runs; its last line may be cut off. A
tool's own output is in ``<name>.raw/``.

A sample has its cell (``prompt_tokens``, ``output_tokens``, ``context_tokens`` already in the
context, ``concurrency``) and figures named as in ``METRICS``.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import yaml

from envgen import files
from envgen.binding import JsonObject
from envgen.engine.values import MISSHAPEN, read_json
from envgen.errors import Place, ResultsError, UsageError
from envgen.redact import redact_secrets
from envgen.text import counted, reason_of

FORMAT = 1  # increase it when the meaning changes; other formats are refused
SUFFIX = ".jsonl"
UNFINISHED = "unfinished"
_LATEST = re.compile(r"latest(?:~(\d{1,6}))?")


@dataclass(frozen=True)
class Metric:
    """A figure. ``by_output``: it depends on the length of the reply."""

    name: str
    unit: str
    label: str
    by_output: bool


_ROWS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_bytes())
METRICS = {row["name"]: Metric(**row) for row in _ROWS}


@dataclass(frozen=True)
class RunRecord:
    """A run. ``outcome`` is ``unfinished`` without an end line; times are UTC."""

    path: Path
    id: str
    kind: str
    started: datetime
    environment: JsonObject
    parameters: JsonObject
    outcome: str
    summary: JsonObject
    samples: Sequence[JsonObject] = ()

    @property
    def title(self) -> str:
        """Profile and variant, or else the model."""
        words = filter(None, map(self.environment.get, ("profile", "variant")))
        title = " ".join(map(str, words))
        return title or str(self.environment.get("model") or self.id)


# --- writing
# ----------------------------------------------------------------------------------------------------------


class Run:
    """A run that is being recorded. Without ``end``, the record keeps the samples so far."""

    def __init__(self, path: Path, ident: str) -> None:
        self.path = path
        self.id = ident
        self.samples = 0
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._began = time.monotonic()

    def sample(self, data: JsonObject) -> None:
        """Append a sample. ResultsError if it can't be written; earlier ones are kept."""
        self._append(
            {"type": "sample", "at": round(time.monotonic() - self._began, 6), "data": data}
        )
        self.samples += 1

    def raw(self, name: str, content: bytes) -> None:
        """Keep a file of a tool's output beside the record."""
        try:
            files.write(self.path.with_suffix(".raw") / name, content, within=self.path.parent)
        except OSError as error:
            raise self._error(error) from error

    def end(self, outcome: str, summary: JsonObject) -> None:
        """Write the end line."""
        now = utc(datetime.now(timezone.utc))
        self._append({"type": "end", "ended": now, "outcome": outcome, "summary": summary})

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def _append(self, line: JsonObject) -> None:
        rest = encode(line)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            raise self._error(error) from error

    def _error(self, error: OSError) -> ResultsError:
        kept = f"kept {counted(self.samples, 'sample')} of run {self.id} in {self.path}"
        return ResultsError(f"can't write results: {reason_of(error)}; {kept}")


def start(folder: Path, kind: str, environment: JsonObject, parameters: JsonObject) -> Run:
    """Begin a record in ``folder`` (created if missing), without secrets. ResultsError if it can't
    be written.
    """
    time.sleep(0.001)  # names have milliseconds: within one, runs would sort by their random ids
    ident = secrets.token_hex(4)
    when = utc(datetime.now(timezone.utc))
    given = {"environment": environment, "parameters": parameters}
    clean = read_json(redact_secrets(encode(given).decode()))
    head = {"type": "start", "format": FORMAT, "id": ident, "kind": kind, "started": when, **clean}
    path = folder / f"{re.sub('[-:]', '', when)}-{kind}-{ident}{SUFFIX}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files.write(
            path, encode(head), new=True
        )  # whole or not at all: a kill here leaves no empty record
        return Run(path, ident)
    except OSError as error:
        hint = "the folder needs to be writable and have free space"
        raise ResultsError(
            f"can't write results into {folder}: {reason_of(error)}", hint=hint
        ) from error


def utc(moment: datetime) -> str:
    """``2026-01-09T16:25:01.123Z``."""
    return moment.astimezone(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def encode(line: JsonObject) -> bytes:
    """A line of the file."""
    text = json.dumps(plain(line), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace") + b"\n"


def plain(value: Any) -> Any:
    """``value`` as strict JSON: NaN and infinity become the texts NaN, Infinity and -Infinity."""
    return json.loads(json.dumps(value, default=str), parse_constant=str)


# --- reading
# ----------------------------------------------------------------------------------------------------------


def load(path: Path) -> RunRecord:
    """Read a record, also an unfinished one. ResultsError with file and line."""
    try:
        *lines, rest = files.read(path, limit=1 << 30, follow=False).split(b"\n")
    except OSError as error:
        raise ResultsError(f"can't be read: {reason_of(error)}", place=Place(str(path))) from None
    number = 1
    samples = []
    end = None
    try:
        first = read_json(lines[0] if lines else rest)
        if first["type"] != "start" or first["format"] != FORMAT:
            raise ValueError(
                f"not the start of a run, or not of format {FORMAT}, which this envgen reads"
            )
        started = datetime.fromisoformat(first["started"].replace("Z", "+00:00")).astimezone(
            timezone.utc
        )
        for number, text in enumerate(lines[1:], 2):  # noqa: B007 - the error has the number
            line = read_json(text)
            if end is not None or line["type"] not in ("sample", "end"):
                raise ValueError("neither a sample nor the end of the run")
            if line["type"] == "sample":
                samples.append(dict(line["data"]))
            else:
                end = str(line["outcome"]), dict(line["summary"])
        return RunRecord(
            path,
            str(first["id"]),
            str(first["kind"]),
            started,
            dict(first["environment"]),
            dict(first["parameters"]),
            *(end or (UNFINISHED, {})),
            samples,
        )
    except MISSHAPEN as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        hint = "the file is damaged, or not a run record of this envgen"
        raise ResultsError(
            f"this is not a line of a run record: {what}",
            hint=hint,
            place=Place(str(path), number, 1),
        ) from None


def runs(folder: Path) -> tuple[list[RunRecord], list[str]]:
    """All records, oldest first, and a line for each that could not be read. Links are not
    followed.
    """
    records = []
    bad = []
    for path in folder.glob(f"*{SUFFIX}"):
        try:
            records.append(load(path))
        except ResultsError as error:
            bad.append(f"{path.name}: {error.message}")
    return sorted(records, key=lambda one: (one.started, one.path.name)), sorted(bad)


def resolve(folder: Path, name: str, kind: str = "") -> RunRecord:
    """The record for ``name``: ``latest`` (of ``kind``), ``latest~2``, the beginning of an id, or a
    file.
    """
    if name.endswith(SUFFIX):
        path = Path(name)
        return load(path if path.exists() else folder / name)
    entries = [run for run in runs(folder)[0] if kind in ("", run.kind)]
    if latest := _LATEST.fullmatch(name):
        back = int(latest[1] or 0)
        meant = entries[::-1][back : back + 1]
    else:
        meant = [one for one in entries if name and one.id.startswith(name)]
    if len(meant) == 1:
        return meant[0]
    if meant:
        listed = ", ".join(f"{one.id} ({one.kind})" for one in meant[:8])
        raise UsageError(
            f"{name!r} matches {len(meant)} runs: {listed}", hint="give more characters of the id"
        )
    raise UsageError(
        f"no run {name!r} among the {len(entries)} in {folder}", hint="envgen results list"
    )
