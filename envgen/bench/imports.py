"""Figures of others as records: reports of the tools, and lab notes in Markdown.

Whatever looks like a figure and is not imported is handed back with its line and the reason.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NoReturn

from envgen import files
from envgen.bench.notes import Foreign, LeftOut, moment, read_notes
from envgen.bench.tools import benchy_samples, vllm_samples
from envgen.errors import Place, ResultsError, UsageError
from envgen.text import reason_of

MAX_SIZE = 16 << 20


@dataclass
class Imported:
    """What a file gave. ``source`` is in each record."""

    runs: list[Foreign]
    left_out: list[LeftOut]
    source: dict[str, str]


def parse(path: Path, when: datetime | None = None, label: str = "") -> Imported:
    """All runs of a file; ``when`` and ``label`` stand in for what it doesn't say. ResultsError names the place."""
    try:
        content = files.read(path, limit=MAX_SIZE)
        text = content.decode("utf-8-sig")
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        _stop(path, f"the file is not UTF-8 text: {error.reason} at byte {error.start}")
    except OSError as error:
        _stop(path, f"can't be read: {reason_of(error)}")
    suffix = path.suffix.lower()
    left: list[LeftOut] = []
    if suffix == ".json" or text.lstrip()[:1] == "{":
        runs = [_report(path, text, when, label or path.stem)]
    else:
        runs, left = read_notes(text, when, label or path.stem)
    undated = [one for one in runs if one.started is None]
    if undated and suffix != ".md":
        _stop(path, "the file doesn't say when it was measured", "add --date 2026-01-09")
    runs = [one for one in runs if one.samples and one.started]
    if not runs and not left:
        _stop(path, "no figures were found in it", "docs/benchmarking.md lists the files that can be imported")
    return Imported(runs, left, {"file": path.name, "sha256": hashlib.sha256(content).hexdigest()})


def _report(path: Path, text: str, when: datetime | None, label: str) -> Foreign:
    """A JSON report of llama-benchy or of ``vllm bench serve --save-detailed``."""
    try:
        report = json.loads(text)
    except (ValueError, RecursionError) as error:
        _stop(path, f"this is not JSON: {error}", line=getattr(error, "lineno", 0))
    if not isinstance(report, dict) or not {"benchmarks", "output_lens"} & set(report):
        _stop(path, "this is not a report of llama-benchy, nor of vllm bench serve --save-detailed")
    try:
        if "benchmarks" in report:
            samples = benchy_samples(report)
            tool = {"tool": "llama-benchy", "versions": {"llama-benchy": report.get("version")}}
            found = moment(report.get("timestamp"))
        else:
            samples = vllm_samples(report)
            tool, found = {"tool": "vllm"}, _compact(report.get("date"))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        _stop(path, f"the report has another form: {type(error).__name__}: {error}")
    keys = ("latency_mode", "latency_ms", "max_concurrency", "prefix_caching_enabled", "request_rate")
    parameters = {**tool, **{name: report[name] for name in keys if name in report}}
    model = report.get("model") or report.get("model_id")
    return Foreign(label, found or when, {"model": model} if model else {}, parameters, samples)


def _compact(text: Any) -> datetime | None:
    try:
        return datetime.strptime(str(text), "%Y%m%d-%H%M%S").replace(tzinfo=timezone.utc)
    except ValueError:
        return None


def _stop(path: Path, message: str, hint: str = "", key: str = "", line: int = 0) -> NoReturn:
    """Raise ResultsError for a place in a file that is imported."""
    raise ResultsError(message, hint=hint, place=Place(str(path), line, 1 if line else 0, key))
