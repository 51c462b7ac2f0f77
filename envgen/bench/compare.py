"""Figures from samples, and the comparison of runs: significance, and what differed in their environments.

The spread is numpy's ``std`` (divided by n), as llama-benchy and ``vllm bench serve`` print it, so figures equal the
tool's. The tests use the values themselves.
"""

from __future__ import annotations

import statistics
import string
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from envgen.bench.record import METRICS, Metric, RunRecord, utc

ALPHA = 0.05
FEWEST = 3  # values of each run for a test
UNITS = ("repeat", "request")  # of samples; a cell uses the first one that it has
_P_VALUES = ("p_welch", "p_adjusted", "p_mann_whitney")


@dataclass(frozen=True, order=True)
class MatrixCell:
    """A cell of the test matrix, in tokens; -1: unknown. Figures of the prompt alone have no ``output``; for a
    ``kernel``, ``prompt`` is its number of tokens."""

    kernel: str = field(default="", kw_only=True)
    output: int = -1
    prompt: int = -1
    context: int = 0
    concurrency: int = 1

    def __str__(self) -> str:
        """llama-bench's name of the test: ``pp2048 tg32 @ d4096 c8``."""
        if self.kernel:
            return f"{self.kernel} M={self.prompt}"
        words = ["pp?" if self.prompt < 0 else f"pp{self.prompt}"]
        words += [f"tg{self.output}"] if self.output >= 0 else []
        words += [f"@ d{self.context}"] if self.context else []
        words += [f"c{self.concurrency}"] if self.concurrency != 1 else []
        return " ".join(words)

    @property
    def sample(self) -> dict[str, int]:
        """The cell as a record names it."""
        return {"prompt_tokens": self.prompt, "output_tokens": self.output, "context_tokens": self.context,
                "concurrency": self.concurrency}  # fmt: skip


@dataclass(frozen=True)
class FigureRange:
    """A figure in a cell."""

    mean: float
    sd: float
    n: int
    values: Sequence[float]
    unit: str

    def __str__(self) -> str:
        return f"{self.mean:,.2f} ± {self.sd:,.2f} ({self.n})"


Table = Mapping[str, Mapping[MatrixCell, FigureRange]]


def number(value: Any) -> float | None:
    """A finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < 1e300 else None  # False for NaN too


def cell_of(data: Mapping[str, Any], metric: Metric) -> MatrixCell:
    """The cell of a sample's value of ``metric``."""

    def length(name: str, default: int) -> int:
        value = number(data.get(name))
        return default if value is None or not 0 <= value <= 1e12 else int(value)

    output = length("output_tokens", -1) if metric.by_output else -1
    cell = MatrixCell(output, length("prompt_tokens", -1), length("context_tokens", 0), length("concurrency", 1))
    kernel = data.get("kernel")
    return replace(cell, kernel=kernel[:100]) if isinstance(kernel, str) else cell


def table(samples: Iterable[Mapping[str, Any]]) -> Table:
    """All figures of a run: metric -> cell -> series of its repetitions, or else requests."""
    values: dict[tuple[str, MatrixCell], dict[str, list[float]]] = {}
    means: dict[tuple[str, MatrixCell], FigureRange] = {}
    for data in samples:
        unit = data.get("unit", "repeat")
        if data.get("error") or unit not in UNITS:
            continue
        for name, metric in METRICS.items():
            if (value := number(data.get(name))) is None:
                continue
            values.setdefault((name, cell_of(data, metric)), {}).setdefault(unit, []).append(value)
    for key, units in values.items():
        unit, kept = next((one, units[one]) for one in UNITS if one in units)
        means[key] = FigureRange(statistics.fmean(kept), statistics.pstdev(kept), len(kept), tuple(kept), unit)
    cells = sorted(means, key=lambda key: key[1])
    return {name: {key[1]: means[key] for key in cells if key[0] == name} for name in METRICS
            if any(key[0] == name for key in cells)}  # fmt: skip


@dataclass(frozen=True)
class FigureRow:
    """A figure in a cell: each run's series, and its comparison with the first run (None: nothing to compare), as in
    JSON: percent with its interval, p values and a ``verdict``."""

    metric: Metric
    cell: MatrixCell
    series: Sequence[FigureRange | None]
    against: Sequence[dict[str, Any] | None]


@dataclass(frozen=True)
class Comparison:
    """Runs named A, B, C..., their rows, and what differs between them."""

    runs: Mapping[str, RunRecord]
    rows: Sequence[FigureRow]
    differing: Sequence[str]


def compare(records: Sequence[RunRecord]) -> Comparison:
    """Compare runs with the first one."""
    names = string.ascii_uppercase[: len(records)]
    tables = [table(record.samples) for record in records]
    rows = []
    for metric in METRICS.values():
        for cell in sorted({cell for one in tables for cell in one.get(metric.name, {})}):
            series = [one.get(metric.name, {}).get(cell) for one in tables]
            rows.append(
                FigureRow(metric, cell, series, [None, *(_difference(cell, series[0], one) for one in series[1:])])
            )
    for column, name in enumerate(names[1:], 1):
        tested = [(one, row.metric) for row in rows if (one := row.against[column]) and not one["verdict"]]
        _adjust([one for one, _ in tested])
        for one, metric in tested:
            better = "better" if (one["percent"] > 0) == metric.more_is_better else "worse"
            significant = one["p_adjusted"] < ALPHA
            one["verdict"] = f"{name} is {better} than {names[0]}" if significant else "no difference shown"
    return Comparison(dict(zip(names, records, strict=True)), rows, list(_differing(records, names)))


def _difference(cell: MatrixCell, a: FigureRange | None, b: FigureRange | None) -> dict[str, Any] | None:
    """The difference of ``b`` from ``a``; if it is not tested, the verdict has the reason."""
    if a is None or b is None:
        return None
    scale = 100 / abs(a.mean) if a.mean else 0.0
    found = {"percent": (b.mean - a.mean) * scale, **dict.fromkeys(("low_percent", "high_percent", *_P_VALUES))}
    for reason, holds in (
        ("the first mean is 0", not a.mean),
        (f"too few values: {a.n} and {b.n}, each needs {FEWEST}", min(len(a.values), len(b.values)) < FEWEST),
        ("parallel requests are not independent", "request" in (a.unit, b.unit) and cell.concurrency != 1),
        ("no spread: the values are copies, or too coarse", not a.sd and not b.sd),
    ):
        if holds:
            return {**found, "verdict": f"not tested ({reason})"}
    from scipy import stats  # heavy, and only here

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # nearly equal values
        welch = stats.ttest_ind(b.values, a.values, equal_var=False)
        low, high = (float(end) * scale for end in welch.confidence_interval(1 - ALPHA))
        ranks = stats.mannwhitneyu(b.values, a.values)
    return {**found, "low_percent": low, "high_percent": high, "p_welch": float(welch.pvalue),
            "p_mann_whitney": float(ranks.pvalue), "verdict": ""}  # fmt: skip


def _adjust(tested: Sequence[dict[str, Any]]) -> None:
    """Holm's method: without it, one of twenty equal cells would be called better or worse."""
    floor = 0.0
    for rank, one in enumerate(sorted(tested, key=lambda one: one["p_welch"])):
        one["p_adjusted"] = floor = max(floor, min(1.0, one["p_welch"] * (len(tested) - rank)))


@dataclass(frozen=True)
class Section:
    """A table to print: the first row is its head, ``right`` are columns of numbers."""

    title: str
    rows: Sequence[Sequence[str]]
    right: range = range(0)


def sections(comparison: Comparison) -> list[Section]:
    """The tables of a comparison. A single run has its criteria, parameters and environment instead of differences."""
    names, (first, *others) = list(comparison.runs), comparison.runs.values()
    head = [("", "id", "when (UTC)", "what", "kind", "outcome")]
    head += [
        (name, run.id, utc(run.started), run.title, run.kind, run.outcome) for name, run in comparison.runs.items()
    ]
    found = [Section("", head)]
    for metric, rows in groupby(comparison.rows, lambda row: row.metric):
        figures = [(str(row.cell), *(str(series) if series else "-" for series in row.series)) for row in rows]
        found.append(Section(f"{metric.label}, {metric.unit} (mean ± sd)", [("", *names), *figures],
                             range(1, len(names) + 1)))  # fmt: skip
    for column in range(1, len(names)):
        lines = [("", "difference", "95 % interval", "p Welch", "adjusted", "Mann-Whitney", "")]
        for row in comparison.rows:
            if one := row.against[column]:
                interval, *tests = [""] * 4
                if one["p_welch"] is not None:
                    interval = f"{one['low_percent']:+.1f} … {one['high_percent']:+.1f}"
                    tests = [f"{one[name]:.4f}" for name in _P_VALUES]
                label = f"{row.metric.label} {row.cell}"
                lines.append((label, f"{one['percent']:+.1f} %", interval, *tests, one["verdict"]))
        found.append(Section(f"{names[column]} against {names[0]}", lines, range(1, 6)))
    if others:
        differing = [(line,) for line in comparison.differing or ["nothing that was recorded"]]
        return [*found, Section("What differed", [("in environments and parameters",), *differing])]
    keys = ("verdict", "part", "name", "seen", "wanted")
    criteria = [[str(one.get(key) or "") for key in keys]
                for one in first.summary.get("criteria") or [] if isinstance(one, dict)]  # fmt: skip
    facts = flat({**first.environment, "parameters": first.parameters, "load": first.summary.get("load")})
    found += [Section("Criteria", [keys, *criteria])] if criteria else []
    return [*found, Section("Parameters and environment", [("", ""), *sorted(facts.items())])]


def _differing(records: Sequence[RunRecord], names: Sequence[str]) -> Iterable[str]:
    """What differs in environments and parameters: ``env.X: marlin in B; not recorded in A``."""
    sides = [flat({**one.environment, "parameters": one.parameters}) for one in records]
    for key in sorted({key for side in sides for key in side}):
        groups: dict[str, list[str]] = {}
        for name, side in zip(names, sides, strict=True):
            groups.setdefault(side.get(key, "not recorded"), []).append(name)
        if len(groups) > 1:
            yield f"{key}: " + "; ".join(f"{text} in {', '.join(who)}" for text, who in groups.items())


def flat(value: Any, prefix: str = "") -> dict[str, str]:
    """A nested value as ``a.b.c`` -> text; the server's arguments (``flags``) as ``flags.FLAG`` -> value."""
    if isinstance(value, (list, tuple)):
        words = [str(item) for item in value]
        if prefix != "flags":
            return {prefix: " ".join(words)}
        value = flags(words)
    if isinstance(value, Mapping):
        found: dict[str, str] = {}
        for name, item in value.items():
            found |= flat(item, f"{prefix}.{name}" if prefix else str(name))
        return found
    return {} if value is None else {prefix: str(value)}


def flags(words: Sequence[str]) -> dict[str, str]:
    """Arguments as flag -> value: ``--a b``, ``--a=b``, ``--a`` (yes); several words of an option are joined."""
    found: dict[str, str] = {}
    name = "(other words)"
    for word in words:
        if word.startswith("--"):
            name, _, value = word.partition("=")
            found[name] = value
        else:
            found[name] = f"{found.get(name, '')} {word}".strip()
    return {name: value or "yes" for name, value in found.items()}
