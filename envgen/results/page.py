"""One self-contained HTML page of runs: tables, plots, and what differed. No script, nothing from a network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from envgen import files
from envgen.errors import EnvgenError, RefusedError, ResultsError
from envgen.paths import templates_dir
from envgen.redact import redact
from envgen.results import text
from envgen.results.charts import latencies, past, quantiles, throughput
from envgen.results.differ import SECTIONS, flat_values
from envgen.results.lines import utc
from envgen.results.matrix import Comparison, compare, title, verdict
from envgen.results.model import Record, plain
from envgen.results.shelf import Shelf

# So many of the newest runs are read for the history.
_MOST_PAST = 300


def write_page(target: Path, records: Sequence[Record], shelf: Shelf) -> None:
    """Write the page of ``records`` to ``target``, whole or not at all; ``shelf`` gives the history.

    Raises RefusedError when something else than a file is there, ResultsError when it can't be written.
    """
    if target.exists() and not target.is_file():
        raise RefusedError(f"refusing to write {target}: something else than a file is there")
    if target.suffix == ".jsonl":
        raise RefusedError(f"refusing to write {target}: that is the name of a record", hint="such as compare.html")
    content = page(records, _past(shelf, records)).encode("utf-8")
    try:
        files.write(target, content)
    except OSError as error:
        raise ResultsError(f"can't write {target}: {error.strerror}") from error


def _past(shelf: Shelf, records: Sequence[Record]) -> list[Record]:
    from envgen.results.store import load

    found = {record.path.resolve(): record for record in records}
    for entry in shelf.entries[-_MOST_PAST:]:
        if entry.damaged or entry.path.resolve() in found:
            continue
        try:
            found[entry.path.resolve()] = load(entry.path)
        except EnvgenError:
            continue  # damaged in its middle, or removed meanwhile: the list tells
    return sorted(found.values(), key=lambda record: (record.started, record.path.name))


def page(records: Sequence[Record], history: Sequence[Record]) -> str:
    """The page as text: the same records give the same bytes."""
    style = (templates_dir() / "results" / "page.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    context = _context(compare(records), history)
    return str(_templates().get_template("page.html").render(style=_Style(style), style_digest=digest, **context))


@cache
def _templates() -> Any:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates_dir() / "results"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Before the escaping, which is always on.
        finalize=lambda value: _shown(value) if type(value) is str else value,
    )


@cache
def _shown(value: str) -> str:
    """A page is made to be handed on: no secrets and home folders; no characters that steer instead of being read."""
    return text.safe(redact(value))


class _Style:
    """The style sheet is ours and is printed as it is."""

    def __init__(self, content: str) -> None:
        self._content = content

    def __html__(self) -> str:
        return self._content


def _context(comparison: Comparison, history: Sequence[Record]) -> dict[str, Any]:
    names, records = comparison.names, comparison.records
    one = len(records) == 1
    heading = f"{records[0].kind}: {title(records[0])}" if one else f"{len(records)} runs compared"
    return {
        "heading": heading,
        "runs": [_run(index, name, record) for index, (name, record) in enumerate(zip(names, records, strict=True))],
        "criteria": text.criteria(records[0].summary) if one else [],
        "metrics": _metrics(comparison),
        "against": [] if one else [_against(comparison, index) for index in range(1, len(records))],
        "differing": None if one else [item.words(names) for item in comparison.differing],
        "throughput": throughput(comparison),
        "latencies": latencies(comparison),
        "quantiles": quantiles(comparison),
        "past": past(comparison, history),
        "environments": [
            {"name": name, "title": title(record), "rows": _environment(record)}
            for name, record in zip(names, records, strict=True)
        ],
    }


def _run(index: int, name: str, record: Record) -> dict[str, Any]:
    return {
        "index": index,
        "name": name,
        "id": record.id,
        "title": title(record),
        "kind": record.kind,
        "started": f"{record.started:%Y-%m-%d %H:%M}",
        "outcome": record.outcome,
        "samples": len(record.samples),
        "imported": "imported" in record.environment,
    }


def _metrics(comparison: Comparison) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for row in comparison.rows:
        entry = found.setdefault(row.metric.name, {"label": row.metric.label, "unit": row.metric.unit, "rows": []})
        entry["rows"].append({"name": row.name, "cells": [text.figure(series) for series in row.series]})
    return list(found.values())


def _against(comparison: Comparison, index: int) -> dict[str, Any]:
    first, name = comparison.names[0], comparison.names[index]
    rows = []
    for row in comparison.rows:
        difference, base, series = row.against[index], row.series[0], row.series[index]
        if difference is not None and base is not None and series is not None:
            state = "open" if not difference.significant else verdict(row.metric, difference, "", "").split()[1]
            rows.append(
                {
                    "name": f"{row.metric.label} {row.name}",
                    "percent": f"{difference.percent:+.1f} %",
                    "interval": text.interval(difference),
                    "counts": f"{base.n or '?'}, {series.n or '?'}",
                    "p": text.probability(difference.p),
                    "adjusted": text.probability(difference.adjusted),
                    "exact": text.probability(difference.exact),
                    "effect": text.effect(difference.effect),
                    "verdict": verdict(row.metric, difference, first, name),
                    "state": state,
                }
            )
    return {"name": name, "first": first, "rows": rows}


def _environment(record: Record) -> list[tuple[str, str]]:
    rows = [
        (f"{SECTIONS.get(section, section)} {name}".strip(), value) for (section, name), value in flat_values(record)
    ]
    rows += [(f"asked for {name}", str(plain(value))) for name, value in record.parameters.items()]
    ended = utc(record.ended) if record.ended else "no end was recorded"
    return [("file", record.path.name), ("started", utc(record.started)), ("ended", ended), *rows]
