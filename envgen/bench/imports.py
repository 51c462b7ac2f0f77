"""Figures of others as records: JSON reports of the tools, and lab notes in Markdown."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from envgen import files
from envgen.bench.notes import Foreign, LeftOut, moment, read_notes
from envgen.bench.tools import benchy_samples, vllm_samples
from envgen.engine.base import MISSHAPEN, read_json
from envgen.errors import Place, ResultsError
from envgen.text import reason_of

MAX_SIZE = 16 << 20
_KEPT = ("latency_mode", "latency_ms", "max_concurrency", "prefix_caching_enabled", "request_rate")


def parse(path: Path, when: datetime | None = None) -> tuple[list[Foreign], list[LeftOut]]:
    """The runs of a file, and the lines with figures that are left out. ``when``: for a file without a date.

    ResultsError where the file can't be read, or holds no figures.
    """
    place = Place(str(path))
    try:
        content = files.read(path, limit=MAX_SIZE)
        text = content.decode("utf-8-sig")
        if path.suffix.lower() == ".json":
            runs, left = [_report(read_json(text), when, path.stem)], list[LeftOut]()
        else:
            runs, left = read_notes(text, when, path.stem)
    except OSError as error:
        raise ResultsError(f"can't be read: {reason_of(error)}", place=place) from None
    except MISSHAPEN as error:
        what = "neither notes in UTF-8 nor a report of llama-benchy or of vllm bench serve --save-detailed"
        raise ResultsError(f"{what}: {type(error).__name__}: {error}", place=place) from None
    if any(one.started is None for one in runs):
        raise ResultsError("the file doesn't say when it was measured", hint="add --date 2026-01-09", place=place)
    if not any(one.samples for one in runs) and not left:
        hint = "docs/benchmarking.md lists the files that can be imported"
        raise ResultsError("no figures were found in it", hint=hint, place=place)
    source = {"file": path.name, "sha256": hashlib.sha256(content).hexdigest()}
    return [replace(one, environment={**one.environment, "imported": source}) for one in runs], left


def _report(report: Any, when: datetime | None, label: str) -> Foreign:
    benchy = "benchmarks" in report
    samples = benchy_samples(report) if benchy else vllm_samples(report)
    tool = {"tool": "llama-benchy", "version": report.get("version")} if benchy else {"tool": "vllm"}
    model = report.get("model") or report.get("model_id")
    # vLLM's: 20261121-074527
    date = re.sub(r"(....)(..)(..)-(..)(..)(..)", r"\1-\2-\3T\4:\5:\6", str(report.get("date")))
    started = moment(report.get("timestamp")) or moment(date) or when
    return Foreign(label, started, {"model": model} if model else {},
                   {**tool, **{name: report[name] for name in _KEPT if name in report}}, samples)  # fmt: skip
