"""Figures out of samples; two or more runs side by side: is a difference more than chance, and what differed?

The spread is numpy's ``std`` (it divides by n), as llama-benchy and ``vllm bench serve`` print it, so that a figure
here is the tool's own to the digit. The tests take the values themselves.
"""

from __future__ import annotations

import math
import re
import statistics
import string
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from envgen.bench.record import METRICS, Metric, Record

ALPHA = 0.05
FEWEST = 3  # values a side: with two, the spread is a guess


@dataclass(frozen=True, order=True)
class Cell:
    """One place of the matrix, in tokens; -1: not known. Figures of the prompt alone have no ``output``."""

    output: int = -1
    prompt: int = -1
    context: int = 0
    concurrency: int = 1

    def __str__(self) -> str:
        """As llama-bench calls its tests: ``pp2048 tg32 @ d4096 c8``."""
        words = ["pp?" if self.prompt < 0 else f"pp{self.prompt}"]
        words += [f"tg{self.output}"] if self.output >= 0 else []
        words += [f"@ d{self.context}"] if self.context else []
        words += [f"c{self.concurrency}"] if self.concurrency != 1 else []
        return " ".join(words)

    @property
    def sample(self) -> dict[str, int]:
        """As a record names the cell."""
        return {"prompt_tokens": self.prompt, "output_tokens": self.output, "context_tokens": self.context,
                "concurrency": self.concurrency}  # fmt: skip


@dataclass(frozen=True)
class Series:
    """One figure in one cell. ``values`` are empty for another's mean; ``sd`` is NaN where it is not known."""

    mean: float
    sd: float = math.nan
    n: int = 0
    values: tuple[float, ...] = ()
    unit: str = "aggregate"

    @classmethod
    def of(cls, values: Iterable[float], unit: str = "repeat") -> Series:
        """Of at least one value."""
        kept = tuple(values)
        return cls(statistics.fmean(kept), statistics.pstdev(kept), len(kept), kept, unit)

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> Series:
        """What ``plain`` wrote."""
        sd = math.nan if plain["sd"] is None else plain["sd"]
        return cls(plain["mean"], sd, plain["n"] or 0, tuple(plain["values"]), plain["unit"])

    def __str__(self) -> str:
        text = f"{self.mean:,.2f}" + ("" if math.isnan(self.sd) else f" ± {self.sd:,.2f}")
        return f"{text} ({self.n})" if self.n else text

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {**_without_nan(self), "n": self.n or None, "values": list(self.values)}


def _without_nan(one: Series | Difference) -> dict[str, Any]:
    return {name: None if value != value else value for name, value in vars(one).items()}


Table = Mapping[str, Mapping[Cell, Series]]


def number(value: Any) -> float | None:
    """A finite number, or None for whatever else is there."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < 1e300 else None  # also what no float holds; NaN compares false


def cell_of(data: Mapping[str, Any], metric: Metric) -> Cell:
    """Where a sample's value of ``metric`` belongs."""

    def length(name: str, default: int) -> int:
        value = number(data.get(name))
        return default if value is None or not 0 <= value <= 1e12 else int(value)

    output = length("output_tokens", -1) if metric.by_output else -1
    return Cell(output, length("prompt_tokens", -1), length("context_tokens", 0), length("concurrency", 1))


def table(samples: Iterable[Mapping[str, Any]]) -> Table:
    """All figures of a run: metric -> cell -> series. Repetitions count, else requests, else an imported mean."""
    found: dict[str, dict[Cell, dict[str, list[Any]]]] = {}
    for data in samples:
        unit = str(data.get("unit", "repeat"))
        if data.get("warmup") or data.get("error") or unit not in ("repeat", "request", "aggregate"):
            continue
        for name, metric in METRICS.items():
            value = number(data.get(name))
            if value is not None:
                units = found.setdefault(name, {}).setdefault(cell_of(data, metric), {})
                units.setdefault(unit, []).append(_mean_of(data, name, value) if unit == "aggregate" else value)
    return {name: {cell: _best(found[name][cell]) for cell in sorted(found[name])} for name in METRICS if name in found}


def _mean_of(data: Mapping[str, Any], name: str, mean: float) -> Series:
    spread = data.get("spread")
    sd = number(spread.get(name)) if isinstance(spread, Mapping) else None
    return Series(mean, math.nan if sd is None else sd, int(number(data.get("runs")) or 0))


def _best(units: Mapping[str, list[Any]]) -> Series:
    for unit in ("repeat", "request"):
        if unit in units:
            return Series.of(units[unit], unit)
    means: list[Series] = units["aggregate"]
    if len(means) == 1 or any(not one.n or math.isnan(one.sd) for one in means):
        return means[-1]
    total = sum(one.n for one in means)  # several means of one cell as one: exact where all name n and spread
    mean = sum(one.n * one.mean for one in means) / total
    return Series(mean, math.sqrt(sum(one.n * (one.sd**2 + (one.mean - mean) ** 2) for one in means) / total), total)


@dataclass(frozen=True)
class Difference:
    """B against A in one cell, in percent, with its interval. ``not_tested`` says why there is no p."""

    percent: float
    low_percent: float = math.nan
    high_percent: float = math.nan
    p_welch: float = math.nan
    p_adjusted: float = math.nan  # Welch's, after Holm
    p_mann_whitney: float = math.nan
    not_tested: str = ""

    @property
    def significant(self) -> bool:
        """Below 5 %, adjusted for the number of cells."""
        return self.p_adjusted < ALPHA

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {**_without_nan(self), "significant": None if self.not_tested else self.significant}


@dataclass(frozen=True)
class Row:
    """One cell of one figure: what each run says of it (None: nothing), and each later run against the first."""

    metric: Metric
    cell: Cell
    series: tuple[Series | None, ...]
    against: tuple[Difference | None, ...]

    def verdict(self, column: int, names: Sequence[str]) -> str:
        """The difference of one run in words."""
        found = self.against[column]
        if found is None or found.not_tested:
            return f"not tested ({found.not_tested})" if found else ""
        if not found.significant:
            return "no difference shown"
        better = (found.percent > 0) == self.metric.more_is_better
        return f"{names[column]} is {'better' if better else 'worse'} than {names[0]}"


@dataclass(frozen=True)
class Comparison:
    """Runs called A, B, C..., their rows, and what is not the same in all of them."""

    names: tuple[str, ...]
    records: tuple[Record, ...]
    rows: tuple[Row, ...]
    differing: tuple[str, ...]


def compare(records: Sequence[Record]) -> Comparison:
    """The comparison of one run or more; every test is against the first."""
    names = tuple(string.ascii_uppercase[: len(records)])
    tables = [table(record.samples) for record in records]
    rows = []
    for metric in METRICS.values():
        for cell in sorted({cell for one in tables for cell in one.get(metric.name, {})}):
            series = tuple(one.get(metric.name, {}).get(cell) for one in tables)
            against = (None, *(_difference(cell, series[0], other) for other in series[1:]))
            rows.append(Row(metric, cell, series, against))
    for column in range(1, len(records)):
        rows = _holm(rows, column)
    return Comparison(names, tuple(records), tuple(rows), tuple(_differing(records, names)))


def _difference(cell: Cell, a: Series | None, b: Series | None) -> Difference | None:
    if a is None or b is None:
        return None
    scale = 100 / abs(a.mean) if a.mean else math.nan
    percent = (b.mean - a.mean) * scale
    if not a.values or not b.values:
        return Difference(percent, not_tested="no values: imported means")
    if min(a.n, b.n) < FEWEST:
        return Difference(percent, not_tested=f"too few values: {a.n} and {b.n}, {FEWEST} each are needed")
    if "request" in (a.unit, b.unit) and cell.concurrency != 1:
        return Difference(percent, not_tested="requests side by side are not independent")
    if a.sd == 0 and b.sd == 0:
        return Difference(percent, not_tested="no spread at all: the values are copies, or too coarse")
    from scipy import stats  # heavy, and only here

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # nearly equal values
        welch = stats.ttest_ind(b.values, a.values, equal_var=False)
        low, high = (float(end) * scale for end in welch.confidence_interval(1 - ALPHA))
        ranks = stats.mannwhitneyu(b.values, a.values)
    return Difference(percent, low, high, float(welch.pvalue), p_mann_whitney=float(ranks.pvalue))


def _holm(rows: list[Row], column: int) -> list[Row]:
    """Welch's p adjusted for the number of cells: where nothing differs, one table in twenty calls something better."""
    found = [(one.p_welch, i) for i, row in enumerate(rows) if (one := row.against[column]) and not one.not_tested]
    floor, made = 0.0, list(rows)
    for rank, (p, index) in enumerate(sorted(found)):
        floor = max(floor, min(1.0, p * (len(found) - rank)))
        against = list(made[index].against)
        against[column] = replace(against[column], p_adjusted=floor)  # type: ignore[type-var]
        made[index] = replace(made[index], against=tuple(against))
    return made


@dataclass(frozen=True)
class Section:
    """A table as it is printed and stands on a page; the first row is its head, ``right`` are columns of numbers."""

    title: str
    rows: Sequence[tuple[str, ...]]
    right: range = range(0)


def sections(found: Comparison) -> list[Section]:
    """Figures; with several runs each against the first, and what differed."""
    made, names = [], found.names
    for metric, rows in groupby(found.rows, lambda row: row.metric):
        figures = [(str(row.cell), *(str(one) if one else "-" for one in row.series)) for row in rows]
        head = ("", *(names if len(names) > 1 else ["mean ± sd (n)"]))
        made.append(Section(f"{metric.label}, {metric.unit}", [head, *figures], range(1, len(head))))
    for column in range(1, len(names)):
        lines: list[tuple[str, ...]] = [("", "difference", "95 % interval", "p Welch", "adjusted", "Mann-Whitney", "")]
        for row in found.rows:
            if one := row.against[column]:
                interval = f"{one.low_percent:+.1f} … {one.high_percent:+.1f}"
                values = (f"{value:.4f}" for value in (one.p_welch, one.p_adjusted, one.p_mann_whitney))
                tests = ("", "", "", "") if one.not_tested else (interval, *values)
                name = f"{row.metric.label} {row.cell}"
                lines.append((name, f"{one.percent:+.1f} %", *tests, row.verdict(column, names)))
        made.append(Section(f"{names[column]} against {names[0]}", lines, range(1, 6)))
    if len(names) > 1:
        differing = [(one,) for one in found.differing or ["nothing that was recorded"]]
        made.append(Section("What differed", [("in the environments and parameters",), *differing]))
    return made


_DIGEST = re.compile(r"\b((?:sha256:)?[0-9a-f]{12})[0-9a-f]{52}\b")


def _differing(records: Sequence[Record], names: Sequence[str]) -> Iterable[str]:
    """``env.X: marlin in B; not recorded in A``: all that is not the same in environments and parameters."""
    sides = [flat({**one.environment, "parameters": one.parameters}) for one in records]
    for key in sorted({key for side in sides for key in side} - {"imported.label"}):
        groups: dict[str, list[str]] = {}
        for name, side in zip(names, sides, strict=True):
            groups.setdefault(side.get(key, "not recorded"), []).append(name)
        if len(groups) > 1:
            short = {text: _DIGEST.sub(r"\1…", text) for text in groups}
            distinct = len(set(short.values())) == len(short)
            parts = [f"{short[text] if distinct else text} in {', '.join(who)}" for text, who in groups.items()]
            yield f"{key}: {'; '.join(parts)}"


def flat(value: Any, prefix: str = "") -> dict[str, str]:
    """A nested value as ``a.b.c`` -> text. The server's arguments (``flags``) become flag -> value."""
    if isinstance(value, Mapping):
        found: dict[str, str] = {}
        for name, item in value.items():
            found |= flat(item, f"{prefix}.{name}" if prefix else str(name))
        return found
    if isinstance(value, (list, tuple)):
        words = [str(item) for item in value]
        if prefix == "flags":
            return {f"flags.{name}": text for name, text in flags(words).items()}
        return {prefix: " ".join(words)}
    return {} if value is None else {prefix: str(value)}


def flags(words: Sequence[str]) -> dict[str, str]:
    """Arguments as flag -> value: ``--a b``, ``--a=b``, a bare ``--a`` (yes); a list option takes several words."""
    found: dict[str, str] = {}
    name = "(other words)"
    for word in words:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            found[name] = value if equals else ""
        else:
            found[name] = f"{found.get(name, '')} {word}".strip()
    return {name: value or "yes" for name, value in found.items()}
