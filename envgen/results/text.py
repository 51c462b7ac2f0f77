"""Texts and figures of records as people read them, on a terminal and on a page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from envgen.results.figures import Series, cell_of, number
from envgen.results.model import METRICS
from envgen.results.stats import Difference
from envgen.text import visible


def safe(value: Any) -> str:
    """A text from a record; what could steer its reader (escapes, line breaks, reversed text) is spelled out."""
    return visible(str(value))


def figure(series: Series | None) -> str:
    """``31.58 ± 0.06 (10)``: mean, standard deviation, and how many; a bare mean where no more is known."""
    if series is None:
        return "-"
    text = f"{series.mean:,.2f}"
    if not math.isnan(series.sd):
        text += f" ± {series.sd:,.2f}"
    return f"{text} ({series.n})" if series.n else text


def interval(difference: Difference) -> str:
    """``+1.4 … +2.8``, in percent; empty where there is none."""
    return "" if math.isnan(difference.low) else f"{difference.low:+.1f} … {difference.high:+.1f}"


def probability(value: float) -> str:
    """A p for a table."""
    return "" if math.isnan(value) else "<0.0001" if value < 0.0001 else f"{value:.4f}"


def effect(value: float) -> str:
    """Hedges' g for a table."""
    return "" if math.isnan(value) else f"{value:+.2f}"


def criteria(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    """The criteria of a run (smoke, stress, accept): part, name, wanted, seen, verdict, note; empty without any."""
    found = summary.get("criteria")
    keys = ("part", "name", "wanted", "seen", "verdict", "note")
    rows = found if isinstance(found, tuple) else ()
    return [{key: str(one.get(key) or "") for key in keys} for one in rows if isinstance(one, Mapping)]


def headline(summary: Mapping[str, Any], limit: int = 3) -> str:
    """What a list says of a run: its criteria, else its first figures."""
    told = criteria(summary)
    if told:
        bad = [one["name"] for one in told if one["verdict"] == "failed"]
        head = f"{sum(one['verdict'] == 'passed' for one in told)} of {len(told)} passed"
        return safe(head + (f"; failed: {', '.join(bad)}" if bad else ""))
    return ", ".join(safe(one) for one, _n in zip(_figures(summary), range(limit), strict=False))


def _figures(summary: Mapping[str, Any]) -> Iterator[str]:
    cells = summary.get("cells")
    for cell in cells if isinstance(cells, tuple) else ():
        for name, metric in METRICS.items() if isinstance(cell, Mapping) else ():
            value = cell.get(name)
            mean = number(value.get("mean") if isinstance(value, Mapping) else value)
            if mean is not None and name in ("prefill_tps", "decode_tps"):
                yield f"{cell_of(cell, metric).name(metric)} {metric.label} {mean:.2f} {metric.unit}"
    for name, value in summary.items():
        if isinstance(value, (str, int, float)) and not isinstance(value, bool):
            where, _, last = name.rpartition(" ")
            known = METRICS.get(last)
            yield f"{where} {known.label} {value} {known.unit}".strip() if known else f"{name} {value}"
