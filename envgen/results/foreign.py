"""Reads the figures of others: llama-benchy's JSON and CSV, Markdown tables, and history files (YAML)."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any, NoReturn

from envgen.errors import Place, ResultsError, UsageError
from envgen.results.figures import number
from envgen.results.imported import Foreign

MAX_SIZE = 16 * 1024 * 1024
# What llama-benchy calls a figure in JSON, and how it is called here. Its whole-batch figures are the repetitions.
_JSON = {"pp_throughput": "prefill_tps", "tg_throughput": "decode_tps", "ttfr": "ttfr_ms", "e2e_ttft": "ttft_ms"}
_CSV = {"ttfr": "ttfr_ms", "e2e_ttft": "ttft_ms"}
TEST = re.compile(r"(pp|tg)\s*=?\s*(\d{1,9})(?:\s*@\s*d(\d{1,9}))?(?:\s*\(c(\d{1,6})\))?")


def parse(path: Path, when: datetime | None, label: str) -> list[Foreign]:
    """All runs that the file tells of. ``when`` and ``label`` stand in for what it doesn't say.

    Raises UsageError when there is no such file, ResultsError (with the place) when no figures can be read from it.
    """
    try:
        size = path.stat().st_size
        if size > MAX_SIZE:
            stop(path, f"the file is too large to be a table of figures ({size} bytes)")
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such file") from None
    except OSError as error:
        raise ResultsError(f"{path}: can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        stop(path, f"the file is no UTF-8 text: {error.reason} at byte {error.start}")
    runs = _reader(path, text)(path, text, when, label or path.stem)
    if not runs:
        stop(path, "no figures were found in it", "docs/results.md tells which tables and files can be imported")
    return runs


def stop(path: Path, message: str, hint: str = "", key: str = "", line: int = 0) -> NoReturn:
    """Raise ResultsError for a place in the file that is imported."""
    raise ResultsError(message, hint=hint, place=Place(str(path), line, 1 if line else 0, key))


def _reader(path: Path, text: str) -> Callable[[Path, str, datetime | None, str], list[Foreign]]:
    suffix = path.suffix.lower()
    if suffix == ".json" or (suffix not in (".md", ".csv", ".yaml", ".yml") and text.lstrip()[:1] == "{"):
        return _benchy_json
    if suffix == ".csv":
        return _benchy_csv
    if suffix in (".yaml", ".yml"):
        from envgen.results.history import read_history

        return read_history
    from envgen.results.markdown import read_markdown

    return read_markdown


def moment(value: Any) -> datetime | None:
    """A date or time as UTC, or None. What names no zone is read as UTC."""
    if isinstance(value, str):
        text = value.strip().replace(" ", "T", 1)
        text = text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text
        try:
            value = datetime.fromisoformat(text)
        except ValueError:
            return None
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if not isinstance(value, datetime):
        return None
    try:
        return value.replace(tzinfo=timezone.utc) if value.tzinfo is None else value.astimezone(timezone.utc)
    except OverflowError:
        return None


def dated(path: Path, found: datetime | None, when: datetime | None, line: int = 0) -> datetime:
    """The time of a run: what the file says, else what the caller says; raises when neither does."""
    chosen = found or when
    if chosen is None:
        what = "this table" if line else "the file"
        stop(path, f"{what} doesn't say when it was measured", "say it: --date 2026-01-09", line=line)
    return chosen


def _benchy_json(path: Path, text: str, when: datetime | None, label: str) -> list[Foreign]:
    try:
        report = json.loads(text)
    except (ValueError, RecursionError) as error:
        stop(path, f"this is no JSON: {error}", line=getattr(error, "lineno", 0))
    benchmarks = report.get("benchmarks") if isinstance(report, dict) else None
    if not isinstance(benchmarks, list):
        stop(path, "this is no report of llama-benchy: it has no list `benchmarks`")
    samples: list[dict[str, Any]] = []
    for index, run in enumerate(benchmarks):
        if not isinstance(run, dict):
            stop(path, "a benchmark is an object", key=f"benchmarks[{index}]")
        if not run.get("is_context_prefill_phase"):
            samples += _benchy_samples(run)
    if not samples:
        return []
    parameters = {name: report[name] for name in ("latency_mode", "latency_ms", "max_concurrency") if name in report}
    environment = {
        "model": report.get("model"),
        "versions": {"llama-benchy": report.get("version")},
        "prefix_caching": report.get("prefix_caching_enabled"),
    }
    return [Foreign(label, dated(path, moment(report.get("timestamp")), when), environment, parameters, samples)]


def _benchy_samples(run: Mapping[str, Any]) -> list[dict[str, Any]]:
    cell = {
        "prompt_tokens": run.get("prompt_size"),
        "output_tokens": run.get("response_size"),
        "context_tokens": run.get("context_size") or 0,
        "concurrency": run.get("concurrency") or 1,
    }
    found: list[dict[str, Any]] = []
    for theirs, ours in _JSON.items():
        metric = run.get(theirs)
        values = metric.get("values") if isinstance(metric, dict) else None
        # With several clients the latencies are one a request, the throughputs one a repetition.
        unit = "request" if ours.endswith("_ms") and cell["concurrency"] != 1 else "repeat"
        for value in values if isinstance(values, list) else []:
            if number(value) is not None:
                found.append({"unit": unit, **cell, ours: value})
    return found


def _benchy_csv(path: Path, text: str, when: datetime | None, label: str) -> list[Foreign]:
    rows = csv.DictReader(io.StringIO(text))
    try:
        if not {"test_name", "t_s_mean"} <= set(rows.fieldnames or ()):
            stop(path, "this is no CSV of llama-benchy: it has no columns test_name and t_s_mean", line=1)
        samples: list[dict[str, Any]] = []
        model = ""
        for row in rows:
            model = model or (row.get("model") or "")
            pairs = {"": ("t_s_mean", "t_s_std"), **{ours: (f"{t}_mean", f"{t}_std") for t, ours in _CSV.items()}}
            figures = {
                name: (plain_number(row.get(mean)), plain_number(row.get(sd))) for name, (mean, sd) in pairs.items()
            }
            add_test(samples, row.get("test_name") or "", figures)
    except csv.Error as error:
        stop(path, f"this is no CSV: {error}", line=rows.line_num)
    if not samples:
        return []
    return [Foreign(label, dated(path, None, when), {"model": model}, {}, samples)]


def plain_number(text: Any) -> float | None:
    """A number in words: ``4,573``, ``~555``, ``52.4 ms``; None for whatever else stands there."""
    found = re.fullmatch(
        r"~?\s*(-?\d{1,15}(?:,\d{3})*(?:\.\d{1,15})?(?:[eE][-+]?\d{1,3})?)\s*(?:ms|tok/s|t/s)?", str(text)
    )
    return number(float(found[1].replace(",", ""))) if found else None


def add_test(
    samples: list[dict[str, Any]],
    name: str,
    figures: Mapping[str, tuple[float | None, float | None]],
    *,
    prompt: int | None = None,
) -> bool:
    """Add one row of llama-bench's or llama-benchy's table: a test such as ``pp2048 @ d4096 (c2)`` and its figures.

    ``figures`` maps our name (empty: the throughput) to mean and deviation. A ``tg`` test follows its ``pp`` test, so
    it takes the prompt of the last one of the same depth, unless ``prompt`` says it. Returns False for another name.
    """
    test = TEST.fullmatch(name.strip())
    if not test:
        return False
    cell = {"context_tokens": int(test[3] or 0), "concurrency": int(test[4] or 1)}
    main = "prefill_tps" if test[1] == "pp" else "decode_tps"
    if test[1] == "pp":
        cell["prompt_tokens"] = int(test[2])
    else:
        cell["output_tokens"] = int(test[2])
        before = [
            s["prompt_tokens"]
            for s in samples
            if "prefill_tps" in s and all(s[k] == cell[k] for k in ("context_tokens", "concurrency"))
        ]
        if prompt is not None or before:
            cell["prompt_tokens"] = before[-1] if prompt is None else prompt
    found = {ours or main: pair for ours, pair in figures.items() if pair[0] is not None}
    if not found:
        return False
    spread = {name: sd for name, (_mean, sd) in found.items() if sd is not None}
    samples.append({"unit": "aggregate", **cell, **{n: mean for n, (mean, _sd) in found.items()}, "spread": spread})
    return True
