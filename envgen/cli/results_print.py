"""What `envgen results` prints: tables for people, documents for programs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import click

from envgen.results.differ import SECTIONS, flat_values
from envgen.results.figures import Series
from envgen.results.lines import utc
from envgen.results.matrix import Comparison, Row, compare, title, verdict
from envgen.results.model import Record, plain
from envgen.results.shelf import Entry
from envgen.results.stats import Difference
from envgen.results.text import criteria, effect, figure, headline, interval, probability, safe
from envgen.text import table


def columns(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
    """Print ``rows`` as aligned columns; ``right`` names those that are aligned to the right."""
    click.echo("\n".join(table(rows, right=right)))


def entry_document(entry: Entry) -> dict[str, Any]:
    """One run of the list."""
    return {
        "id": entry.id,
        "kind": entry.kind,
        "started": utc(entry.started) if entry.started else None,
        "project": plain(entry.environment.get("project")),
        "profile": plain(entry.environment.get("profile")),
        "variant": plain(entry.environment.get("variant")),
        "imported": plain(entry.environment.get("imported")),
        "outcome": entry.outcome,
        "summary": plain(entry.summary),
        "damaged": entry.damaged or None,
        "file": str(entry.path),
    }


def print_list(entries: Sequence[Entry]) -> None:
    """The list for people."""
    if not entries:
        return
    rows = [("RUN", "WHEN (UTC)", "KIND", "PROFILE", "VARIANT", "OUTCOME", "HEADLINE")]
    for entry in entries:
        imported = entry.environment.get("imported")
        label = imported.get("label") if isinstance(imported, Mapping) else None
        rows.append(
            (
                safe(entry.id),
                f"{entry.started:%Y-%m-%d %H:%M}" if entry.started else "",
                safe(entry.kind),
                safe(entry.environment.get("profile") or ""),
                safe(label or entry.environment.get("variant") or _model(entry)),
                safe(entry.outcome),
                safe(entry.damaged) if entry.damaged else headline(entry.summary, 2),
            )
        )
    columns(rows)


def _model(entry: Entry) -> str:
    """What names a run of a server that belongs to no profile."""
    return "" if entry.environment.get("profile") else str(entry.environment.get("model") or "")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _series_document(series: Series | None) -> dict[str, Any] | None:
    if series is None:
        return None
    return {
        "mean": series.mean,
        "sd": _finite(series.sd),
        "cv_percent": _finite(series.cv),
        "n": series.n or None,
        "unit": series.unit,
        "values": list(series.values),
    }


def _rows_document(rows: Sequence[Row], names: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {
            "metric": row.metric.name,
            "unit": row.metric.unit,
            "cell": row.name,
            "prompt_tokens": row.cell.prompt if row.cell.prompt >= 0 else None,
            "output_tokens": row.cell.output if row.cell.output >= 0 else None,
            "context_tokens": row.cell.context,
            "concurrency": row.cell.concurrency,
            "runs": {name: _series_document(series) for name, series in zip(names, row.series, strict=True)},
            "against_first": {
                name: _difference_document(row, difference, names[0], name)
                for name, difference in zip(names, row.against, strict=True)
                if difference is not None
            },
        }
        for row in rows
    ]


def _difference_document(row: Row, difference: Difference, first: str, other: str) -> dict[str, Any]:
    return {
        "percent": _finite(difference.percent),
        "confidence_95_percent": [_finite(difference.low), _finite(difference.high)],
        "p_welch": _finite(difference.p),
        "p_adjusted": _finite(difference.adjusted),
        "p_exact": _finite(difference.exact),
        "hedges_g": _finite(difference.effect),
        "significant": difference.significant if not difference.untested else None,
        "not_tested": difference.untested or None,
        "verdict": verdict(row.metric, difference, first, other),
    }


def record_document(record: Record) -> dict[str, Any]:
    """All of a run."""
    rows = compare([record]).rows
    figures = [{k: v for k, v in row.items() if k != "against_first"} for row in _rows_document(rows, ["A"])]
    for row in figures:
        row["series"] = row.pop("runs")["A"]
    return {
        "id": record.id,
        "kind": record.kind,
        "started": utc(record.started),
        "ended": utc(record.ended) if record.ended else None,
        "outcome": record.outcome,
        "torn": record.torn,
        "file": str(record.path),
        "summary": plain(record.summary),
        "figures": figures,
        "parameters": plain(record.parameters),
        "environment": plain(record.environment),
        "samples": [{"at": sample.at, "data": plain(sample.data)} for sample in record.samples],
    }


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """Matrix, tests and differences."""
    return {
        "runs": {
            name: {"id": record.id, "kind": record.kind, "title": title(record), "started": utc(record.started)}
            for name, record in zip(comparison.names, comparison.records, strict=True)
        },
        "figures": _rows_document(comparison.rows, comparison.names),
        "differing": [
            {
                "section": item.section,
                "name": item.name,
                "values": dict(zip(comparison.names, item.values, strict=True)),
                "words": item.words(comparison.names),
            }
            for item in comparison.differing
        ],
    }


def print_record(record: Record) -> None:
    """A run for people."""
    click.echo(f"{record.kind} {safe(record.id)}: {safe(title(record))}")
    click.echo(f"  started  {utc(record.started)}")
    seconds = (record.ended - record.started).total_seconds() if record.ended else 0.0
    lasted = f" after {seconds:.1f} s" if seconds else ""
    click.echo(f"  outcome  {safe(record.outcome)}{lasted}{'; its last line is cut off' if record.torn else ''}")
    failed = sum(1 for sample in record.samples if sample.data.get("error"))
    click.echo(f"  samples  {len(record.samples)}{f', {failed} of them failed' if failed else ''}")
    click.echo(f"  file     {record.path}")
    _print_figures(compare([record]))
    _print_criteria(record)
    rest = {name: value for name, value in record.summary.items() if name not in ("criteria", "cells")}
    for head, values in (("summary", rest), ("parameters", record.parameters)):
        if values:
            click.echo(f"\n{head}")
            columns([(f"  {safe(name)}", safe(_short(value))) for name, value in values.items()])
    click.echo("\nenvironment")
    rows = [
        (f"  {SECTIONS.get(section, section)} {name}".rstrip(), text) for (section, name), text in flat_values(record)
    ]
    columns([(safe(name), safe(text)) for name, text in rows] or [("  (nothing was recorded)", "")])


def _print_criteria(record: Record) -> None:
    told = criteria(record.summary)
    if told:
        click.echo("\ncriteria")
        columns([tuple(safe(one[key]) for key in ("verdict", "part", "name", "seen", "wanted")) for one in told])


def _short(value: Any) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)


def _print_figures(comparison: Comparison) -> None:
    seen = ""
    table: list[tuple[str, ...]] = []
    for row in comparison.rows:
        if row.metric.name != seen:
            seen = row.metric.name
            heads = comparison.names if len(comparison.names) > 1 else ("mean ± sd (n)",)
            table.append((f"{row.metric.label}, {row.metric.unit}", *heads))
        table.append((f"  {row.name}", *[figure(series) for series in row.series]))
    if table:
        click.echo()
        columns(table, right=range(1, len(table[0])))


def print_comparison(comparison: Comparison) -> None:
    """A comparison for people."""
    rows = []
    for name, record in zip(comparison.names, comparison.records, strict=True):
        rows.append((name, safe(record.id), f"{record.started:%Y-%m-%d %H:%M}", record.kind, safe(title(record))))
    columns(rows)
    if not comparison.rows:
        click.echo("\nno figures: these runs measured no throughput or latency")
    _print_figures(comparison)
    for index, name in list(enumerate(comparison.names))[1:]:
        _print_against(comparison, index, name)
    click.echo("\nwhat differed")
    for item in comparison.differing:
        click.echo(f"  {safe(item.words(comparison.names))}")
    if not comparison.differing:
        click.echo("  nothing that was recorded")


def _print_against(comparison: Comparison, index: int, name: str) -> None:
    first = comparison.names[0]
    table: list[tuple[str, ...]] = []
    for row in comparison.rows:
        difference = row.against[index]
        if difference is None:
            continue
        series, base = row.series[index], row.series[0]
        counts = f"{(base and base.n) or '?'}, {(series and series.n) or '?'}"
        table.append(
            (
                f"  {row.metric.label} {row.name}",
                f"{difference.percent:+.1f} %",
                interval(difference),
                counts,
                probability(difference.p),
                probability(difference.adjusted),
                probability(difference.exact),
                effect(difference.effect),
                verdict(row.metric, difference, first, name),
            )
        )
    click.echo(f"\n{name} against {first}")
    if not table:
        click.echo("  no cell was measured in both")
        return
    head = ("", "difference", "95 % interval", "n", "p", "p adjusted", "p exact", "effect g", "")
    columns([head, *table], right=range(1, 8))
