"""Runs that somebody else measured, as records: marked as imported, with source and date."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from envgen import files
from envgen.errors import ResultsError
from envgen.results.clean import without_secrets
from envgen.results.lines import encode, utc
from envgen.results.model import FORMAT
from envgen.results.store import SUFFIX

KIND = "imported"


@dataclass(frozen=True)
class Foreign:
    """One run as its file tells it. ``samples`` are as in ``model.py``; ``started`` is what the source says, in UTC."""

    label: str
    started: datetime
    environment: Mapping[str, Any]
    parameters: Mapping[str, Any]
    samples: Sequence[Mapping[str, Any]]


def write(folder: Path, run: Foreign, source: Mapping[str, Any]) -> tuple[Path, bool]:
    """Write ``run`` into ``folder`` as one whole file; returns its path and whether it is new.

    The id is a digest of the content: importing the same figures again changes nothing. ``source`` says where they come
    from and goes into ``environment.imported``. Raises ResultsError when the folder can't be written.
    """
    rest = dict(run.environment)
    origin = {"source": rest.pop("source")} if "source" in rest else {}
    environment = without_secrets({"imported": {**origin, **source, "label": run.label}, **rest})
    start = {"kind": KIND, "started": utc(run.started), "environment": environment, "parameters": run.parameters}
    samples = [encode({"type": "sample", "at": 0, "data": data}) for data in run.samples]
    # Of what was measured alone: a comment added to the file makes no second run.
    content = encode({**start, "environment": run.environment, "label": run.label})
    ident = hashlib.sha256(b"".join([content, *samples])).hexdigest()[:8]
    end = {"type": "end", "ended": utc(run.started), "outcome": KIND, "summary": headline(run.samples)}
    content = b"".join([encode({"type": "start", "format": FORMAT, "id": ident, **start}), *samples, encode(end)])
    stamp = utc(run.started).replace("-", "").replace(":", "")
    target = folder / f"{stamp}-{KIND}-{ident}{SUFFIX}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return target, _place(target, content)
    except OSError as error:
        raise ResultsError(f"can't write results into {folder}: {error.strerror}") from error


def headline(samples: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The summary of the run: what ``list`` shows of it."""
    from envgen.results.figures import headline as of_table
    from envgen.results.figures import table
    from envgen.results.model import Sample, frozen

    return of_table(table([Sample(0.0, frozen(dict(data))) for data in samples]))


def _place(target: Path, content: bytes) -> bool:
    """Write whole or not at all, never over a file that is there."""
    try:
        files.write(target, content, new=True)
    except FileExistsError:
        return False
    return True


def source(path: Path, text: str) -> dict[str, str]:
    """What a record says of the file that it was imported from: its name, never its folder, and its digest."""
    return {
        "file": path.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        **({"source": text} if text else {}),
    }
