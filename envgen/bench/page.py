"""One self-contained HTML page of runs: tables, plots by matplotlib (SVG), what differed. No script, no network."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from envgen import files
from envgen.bench.compare import Comparison, Row, compare
from envgen.bench.record import SUFFIX, Record, utc
from envgen.errors import RefusedError, ResultsError
from envgen.paths import templates_dir
from envgen.redact import redact
from envgen.text import reason_of, visible

_PLOTTED = ("prefill_tps", "decode_tps", "ttft_ms")


def write_page(target: Path, records: Sequence[Record]) -> None:
    """Write the page of ``records``, whole or not at all."""
    if target.exists() and not target.is_file():
        raise RefusedError(f"refusing to write {target}: it is not a file", hint="choose another name")
    if target.suffix == SUFFIX:
        raise RefusedError(f"refusing to write {target}: that is the name of a record", hint="such as compare.html")
    try:
        files.write(target, page(records).encode("utf-8"))
    except OSError as error:
        raise ResultsError(f"can't write {target}: {reason_of(error)}") from error


def page(records: Sequence[Record]) -> str:
    """The page as text: the same records give the same bytes."""
    found = compare(records)
    runs = [
        {"name": name, "id": one.id, "when": utc(one.started), "kind": one.kind, "title": one.title,
         "outcome": one.outcome}
        for name, one in zip(found.names, records, strict=True)
    ]  # fmt: skip
    metrics: dict[str, list[Row]] = {}
    for row in found.rows:
        metrics.setdefault(row.metric.name, []).append(row)
    plots = [_plot(found, metrics[name]) for name in _PLOTTED if name in metrics]
    environment = Environment(
        loader=FileSystemLoader(templates_dir() / "results"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["safe_text"] = lambda text: visible(redact(str(text)))
    names = list(found.names)
    against = []
    for column in range(1, len(names)):
        tested = [(row, row.against[column], row.verdict(column, names)) for row in found.rows if row.against[column]]
        against.append((names[column], tested))
    criteria = records[0].summary.get("criteria") or [] if len(records) == 1 else []
    return environment.get_template("page.html").render(
        runs=runs, metrics=list(metrics.values()), plots=plots, differing=found.differing, against=against,
        criteria=[one for one in criteria if isinstance(one, dict)],
    )  # fmt: skip


def _plot(found: Comparison, rows: Sequence[Row]) -> str:
    """Means with one standard deviation: over the context where there are several, else one group of bars a cell."""
    import matplotlib as mpl  # heavy, and only here

    mpl.use("svg")
    from matplotlib import pyplot

    metric = rows[0].metric
    contexts = {row.cell.context for row in rows}
    # Fixed ids: the same records give the same bytes. No name from a record enters the picture.
    with mpl.rc_context({"svg.hashsalt": "envgen", "font.size": 10, "text.parse_math": False}):
        figure, axes = pyplot.subplots(figsize=(7, 3.6), layout="constrained")
        try:
            if len(contexts) > 1:
                _lines(axes, found, rows)
                axes.set_xlabel("tokens in the context before")
            else:
                _bars(axes, found, rows)
            axes.set_title(f"{metric.label}, {metric.unit}")
            axes.set_ylim(bottom=0)
            axes.grid(axis="y", alpha=0.3)
            if len(found.names) > 1:
                axes.legend()
            out = io.StringIO()
            figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
        finally:
            pyplot.close(figure)
    return out.getvalue().partition("<svg")[2].join(['<svg role="img"', ""])


def _lines(axes: Any, found: Comparison, rows: Sequence[Row]) -> None:
    for index, name in enumerate(found.names):
        series: dict[str, list[tuple[int, float, float]]] = {}
        for row in rows:
            if one := row.series[index]:
                key = str(row.cell).replace(f" @ d{row.cell.context}", "")
                series.setdefault(key, []).append((row.cell.context, one.mean, 0.0 if math.isnan(one.sd) else one.sd))
        for key, points in series.items():
            x, y, spread = zip(*sorted(points), strict=True)
            axes.errorbar(x, y, yerr=spread, marker="o", capsize=3, label=f"{name}: {key}")


def _bars(axes: Any, found: Comparison, rows: Sequence[Row]) -> None:
    width = 0.8 / len(found.names)
    for index, name in enumerate(found.names):
        seen = [(place, one) for place, row in enumerate(rows) if (one := row.series[index])]
        axes.bar(
            [place + index * width for place, _ in seen], [one.mean for _, one in seen], width, capsize=3, label=name,
            yerr=[0.0 if math.isnan(one.sd) else one.sd for _, one in seen],
        )  # fmt: skip
    middle = [place + width * (len(found.names) - 1) / 2 for place in range(len(rows))]
    axes.set_xticks(
        middle,
        [str(row.cell) for row in rows],
        rotation=30 if len(rows) > 4 else 0,
        ha="right" if len(rows) > 4 else "center",
    )
