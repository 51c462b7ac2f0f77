"""Figures out of samples: which cell of the matrix a value belongs to, and what its values say together."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from envgen.results.model import METRICS, Metric, Sample


@dataclass(frozen=True, order=True)
class Cell:
    """One place of the matrix. Lengths in tokens; -1 = not told; figures of the prompt alone have no ``output``."""

    output: int
    prompt: int
    context: int
    concurrency: int

    def name(self, metric: Metric) -> str:
        """As llama-bench calls its tests: ``pp2048``, ``pp2048 tg32 @ d4096 c8``."""
        words = ["pp?" if self.prompt < 0 else f"pp{self.prompt}"]
        if metric.by_output:
            words.append("tg?" if self.output < 0 else f"tg{self.output}")
        if self.context:
            words.append(f"@ d{self.context}")
        if self.concurrency != 1:
            words.append(f"c{self.concurrency}")
        return " ".join(words)


@dataclass(frozen=True)
class Series:
    """What one run measured of one figure in one cell.

    ``values`` are empty where only somebody else's mean is known. ``unit`` is repeat, request or aggregate. ``n`` is 0
    and ``sd`` is NaN where they are not known.
    """

    values: tuple[float, ...]
    unit: str
    mean: float
    sd: float
    n: int

    @property
    def cv(self) -> float:
        """Coefficient of variation in percent; NaN where there is none."""
        return 100 * self.sd / abs(self.mean) if self.mean else math.nan


Table = Mapping[str, Mapping[Cell, Series]]


def number(value: Any) -> float | None:
    """A finite number, or None for whatever else stands there."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def _length(data: Mapping[str, Any], name: str, default: int) -> int:
    value = number(data.get(name))
    return default if value is None or value < 0 or value > 1e12 else int(value)


def cell_of(data: Mapping[str, Any], metric: Metric) -> Cell:
    """Where a sample's value of ``metric`` belongs."""
    return Cell(
        output=_length(data, "output_tokens", -1) if metric.by_output else -1,
        prompt=_length(data, "prompt_tokens", -1),
        context=_length(data, "context_tokens", 0),
        concurrency=_length(data, "concurrency", 1),
    )


def measured(samples: Iterable[Sample]) -> list[Mapping[str, Any]]:
    """The samples that count: no warm-up, no error."""
    return [sample.data for sample in samples if not sample.data.get("warmup") and not sample.data.get("error")]


def series_of(values: Iterable[float], unit: str) -> Series:
    """Mean and sample standard deviation of ``values`` (at least one)."""
    kept = tuple(values)
    return Series(kept, unit, statistics.fmean(kept), statistics.stdev(kept) if len(kept) > 1 else math.nan, len(kept))


def table(samples: Iterable[Sample]) -> Table:
    """All figures of a run: metric -> cell -> series, in the order of METRICS and of the cells.

    Where a cell has repetitions they count, else its requests, else a mean that was imported.
    """
    found: dict[str, dict[Cell, dict[str, list[Any]]]] = {}
    for data in measured(samples):
        unit = data.get("unit", "repeat")
        for name, metric in METRICS.items():
            value = number(data.get(name))
            if value is not None and unit in ("repeat", "request", "aggregate"):
                units = found.setdefault(name, {}).setdefault(cell_of(data, metric), {})
                units.setdefault(unit, []).append(_aggregate(data, name, value) if unit == "aggregate" else value)
    return {name: {cell: _best(found[name][cell]) for cell in sorted(found[name])} for name in METRICS if name in found}


def _aggregate(data: Mapping[str, Any], name: str, mean: float) -> Series:
    spread = data.get("spread")
    sd = number(spread.get(name)) if isinstance(spread, Mapping) else None
    return Series((), "aggregate", mean, math.nan if sd is None else sd, _length(data, "runs", 0))


def _best(units: Mapping[str, list[Any]]) -> Series:
    for unit in ("repeat", "request"):
        if unit in units:
            return series_of(units[unit], unit)
    return _pooled(units["aggregate"])


def _pooled(means: list[Series]) -> Series:
    """Several means of one cell as one: exact where all tell n and spread; else the last stands alone."""
    total = sum(series.n for series in means)
    if len(means) == 1 or any(series.n < 2 or math.isnan(series.sd) for series in means):
        return means[-1]
    mean = sum(series.n * series.mean for series in means) / total
    squares = sum((series.n - 1) * series.sd**2 + series.n * (series.mean - mean) ** 2 for series in means)
    return Series((), "aggregate", mean, math.sqrt(squares / (total - 1)), total)


def requests(samples: Iterable[Sample], name: str) -> dict[Cell, tuple[float, ...]]:
    """Every single value of one figure by cell, requests before repetitions: what a distribution is drawn from.

    Where a request holds each gap between its tokens (``gaps_ms``), these are the values of ``itl_ms``: a mean hides
    the one long gap.
    """
    metric = METRICS[name]
    found: dict[Cell, dict[str, list[float]]] = {}
    for data in measured(samples):
        unit = data.get("unit", "repeat")
        gaps = data.get("gaps_ms") if name == "itl_ms" else None
        values = [number(value) for value in (gaps if isinstance(gaps, tuple) else (data.get(name),))]
        kept = [value for value in values if value is not None]
        if kept and unit in ("repeat", "request"):
            found.setdefault(cell_of(data, metric), {}).setdefault(unit, []).extend(kept)
    return {cell: tuple(units.get("request") or units["repeat"]) for cell, units in sorted(found.items())}


# What a headline tells first.
_TELLING = ("decode_tps", "prefill_tps", "ttft_ms", "itl_ms", "requests_per_s", "latency_ms")


def headline(figures: Table) -> dict[str, float]:
    """A flat summary for the end line of a run: of each figure the mean in its first cell, rounded."""
    found: dict[str, float] = {}
    for name in _TELLING:
        for cell, series in list(figures.get(name, {}).items())[:1]:
            found[f"{cell.name(METRICS[name])} {name}"] = round(series.mean, 2)
    return found
