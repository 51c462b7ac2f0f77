"""Which plots a page shows: throughput by context, latency distributions, history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from envgen.percentile import percentile
from envgen.results import plot
from envgen.results.figures import Cell, Series, requests, table
from envgen.results.matrix import Comparison, Row, title
from envgen.results.model import METRICS, Record
from envgen.results.plot import Plot, Point
from envgen.results.text import figure

_MOST = 6  # plots of a kind on one page; the tables hold everything
_MOST_ROWS = 200  # of the history's table: the newest
_FEWEST = 5  # values: a distribution of fewer is a few dots
_LATENCIES = ("ttft_ms", "ttfr_ms", "itl_ms", "latency_ms")


def throughput(comparison: Comparison) -> list[Plot]:
    """Prefill and decode over the tokens in the context: a plot for each output length and concurrency."""
    facets: dict[tuple[str, int, int], list[Row]] = {}
    for row in comparison.rows:
        if row.metric.name in ("prefill_tps", "decode_tps") and row.cell.prompt >= 0:
            facets.setdefault((row.metric.name, row.cell.output, row.cell.concurrency), []).append(row)
    plots: list[tuple[bool, int, int, int, Plot]] = []
    for (name, output, concurrency), rows in facets.items():
        metric = METRICS[name]
        words = [metric.label]
        if metric.by_output:
            words.append(f"of {output} tokens" if output >= 0 else "(length not told)")
        if concurrency != 1:
            words.append(f"for {concurrency} clients")
        runs = []
        for index, run in enumerate(comparison.names):
            points = [_point(row.cell, series, row) for row in rows if (series := row.series[index]) is not None]
            if points:
                runs.append((index, run, points))
        drawn = plot.by_length(" ".join(words), "tokens in the context", f"{metric.label}, {metric.unit}", runs)
        plots.append((metric.by_output, -len(runs), -sum(len(points) for _i, _n, points in runs), len(plots), drawn))
    # Prefill first; then what most of the runs measured. A single point is in the table, and says nothing in a plot.
    telling = [one for one in sorted(plots, key=lambda one: one[:4]) if one[2] < -1]
    return [one[-1] for one in telling[:_MOST]]


def _point(cell: Cell, series: Series, row: Row) -> Point:
    return Point(
        float(cell.prompt + cell.context), series.mean, series.sd, f"{row.name} {figure(series)} {row.metric.unit}"
    )


def latencies(comparison: Comparison) -> list[Plot]:
    """How latencies are distributed: the cells with the most values, a plot each."""
    found: list[tuple[int, Plot]] = []
    for order, name in enumerate(_LATENCIES):
        metric = METRICS[name]
        samples = [requests(record.samples, name) for record in comparison.records]
        for cell in sorted({cell for one in samples for cell in one}):
            runs = [
                (index, run, one[cell])
                for index, (run, one) in enumerate(zip(comparison.names, samples, strict=True))
                if len(one.get(cell, ())) >= _FEWEST
            ]
            if runs:
                heading = f"{metric.label}, {cell.name(metric)}"
                found.append((order, plot.distribution(heading, f"{metric.label}, {metric.unit}", runs)))
    return _spread(found)


def _spread(found: list[tuple[int, Plot]]) -> list[Plot]:
    """At most a page's worth, each figure in turn."""
    by_figure: dict[int, list[Plot]] = {}
    for order, one in found:
        by_figure.setdefault(order, []).append(one)
    chosen: list[tuple[int, int, Plot]] = []
    for rank in range(max((len(plots) for plots in by_figure.values()), default=0)):
        for order, plots in by_figure.items():
            if rank < len(plots) and len(chosen) < _MOST:
                chosen.append((order, rank, plots[rank]))
    return [one for _order, _rank, one in sorted(chosen, key=lambda item: item[:2])]


def quantiles(comparison: Comparison) -> list[dict[str, Any]]:
    """Median and tails of every latency, for the table below the plots."""
    rows = []
    for name in _LATENCIES:
        metric = METRICS[name]
        samples = [requests(record.samples, name) for record in comparison.records]
        for cell in sorted({cell for one in samples for cell in one}):
            for run, one in zip(comparison.names, samples, strict=True):
                values = one.get(cell, ())
                if len(values) >= _FEWEST:
                    tails = [f"{percentile(values, percent):,.1f}" for percent in (50, 90, 95, 99)]
                    rows.append(
                        {"name": f"{metric.label}, {cell.name(metric)}", "run": run, "n": len(values), "at": tails}
                    )
    return rows


def past(comparison: Comparison, history: Sequence[Record]) -> dict[str, Any]:
    """Decode throughput run by run, of the output lengths that these runs measured; unknown lengths stand with each."""
    decode = METRICS["decode_tps"]
    lengths = _told_lengths(comparison)
    letters = {record.path: name for name, record in zip(comparison.names, comparison.records, strict=True)}
    measured = [
        (record, cell, series)
        for record in _same_model(comparison, history)
        for cell, series in table(record.samples).get(decode.name, {}).items()
        if cell.concurrency == 1 and cell.output in (*lengths, -1)
    ]
    plots = []
    for length in lengths:
        chosen = [one for one in measured if one[1].output in (length, -1)]
        if len(chosen) > 1:
            plots.append(_past_plot(f"decode of {length} tokens", letters, chosen))
    rows = [
        {
            "when": f"{record.started:%Y-%m-%d %H:%M}",
            "run": letters.get(record.path, ""),
            "id": record.id,
            "title": title(record),
            "cell": cell.name(decode),
            "figure": figure(series),
        }
        for record, cell, series in measured
    ]
    return {"plots": plots, "rows": rows[-_MOST_ROWS:], "left_out": max(0, len(rows) - _MOST_ROWS)}


def _told_lengths(comparison: Comparison) -> list[int]:
    """The output lengths that most of these runs measured for one client: three at most, shortest first."""
    runs: dict[int, set[int]] = {}
    for row in comparison.rows:
        if row.metric.name == "decode_tps" and row.cell.concurrency == 1 and row.cell.output >= 0:
            here = {index for index, series in enumerate(row.series) if series is not None}
            runs.setdefault(row.cell.output, set()).update(here)
    return sorted(sorted(runs, key=lambda length: (-len(runs[length]), length))[:3])


def _same_model(comparison: Comparison, history: Sequence[Record]) -> list[Record]:
    """Runs of another model are no history of this one; where a run doesn't tell its model, it stays."""
    models = {_model(record) for record in comparison.records}
    return [record for record in history if "" in models or _model(record) in ("", *models)]


def _model(record: Record) -> str:
    """``openai/gpt-oss-120b`` is served as ``gpt-oss-120b``."""
    return str(record.environment.get("model") or "").rstrip("/").rpartition("/")[2].lower()


def _past_plot(heading: str, letters: Mapping[Path, str], chosen: list[tuple[Record, Cell, Series]]) -> Plot:
    slots = {path: slot for slot, path in enumerate(dict.fromkeys(record.path for record, _c, _s in chosen))}
    days = {record.path: f"{record.started:%Y-%m-%d}" for record, _c, _s in chosen}
    groups: dict[str, list[Point]] = {}
    imported, told = set(), set()
    for record, cell, series in sorted(chosen, key=lambda one: -one[2].mean):
        foreign = "imported" in record.environment
        name = letters.get(record.path) or ("imported" if foreign else "other runs")
        words = f"{days[record.path]} {title(record)}, {cell.name(METRICS['decode_tps'])}: {figure(series)} t/s"
        points = groups.setdefault(name, [])
        engine = str(record.environment.get("engine") or "vllm")
        letter = name if len(name) == 1 else engine if engine != "vllm" else ""
        letter = "" if record.path in told else letter[:16]  # once, at the run's highest point
        told.add(record.path)
        points.append(Point(float(slots[record.path]), series.mean, series.sd, words, letter))
        if foreign:
            imported.add(name)
    order = [*letters.values(), "other runs", "imported"]
    shown = [
        plot.Group(
            index if len(name) == 1 else 0 if name == "other runs" else 3,
            name,
            groups[name],
            hollow=name in imported,
            muted=len(name) > 1,
        )
        for index, name in enumerate(order)
        if name in groups
    ]
    return plot.history(heading, "decode, t/s", [days[path] for path in slots], shown)
