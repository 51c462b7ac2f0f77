"""Figures from samples, and the comparison of runs: their medians, and what differed in their environments."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from envgen.bench.record import METRICS, Metric, RunRecord

UNITS = ("repeat", "request")  # of samples; a cell uses the first one that it has


@dataclass(frozen=True, order=True)
class MatrixCell:
    """A cell of the test matrix, in tokens; -1: unknown. Figures of the prompt alone have no ``output``."""

    output: int = -1
    prompt: int = -1
    context: int = 0
    concurrency: int = 1

    def __str__(self) -> str:
        """llama-bench's name of the test: ``pp2048 tg32 @ d4096 c8``."""
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
    """The values of a figure in a cell."""

    values: Sequence[float]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {"min": min(self.values), "median": self.median, "max": max(self.values), "values": list(self.values)}

    def __str__(self) -> str:
        return f"{self.median:,.2f} ({min(self.values):,.2f} to {max(self.values):,.2f}, {len(self.values)})"


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
    return MatrixCell(output, length("prompt_tokens", -1), length("context_tokens", 0), length("concurrency", 1))


def table(samples: Iterable[Mapping[str, Any]]) -> Table:
    """All figures of a run: metric -> cell -> values of its repetitions, or else requests."""
    values: dict[tuple[str, MatrixCell], dict[str, list[float]]] = {}
    ranges: dict[tuple[str, MatrixCell], FigureRange] = {}
    for data in samples:
        unit = data.get("unit", "repeat")
        if data.get("error") or unit not in UNITS:
            continue
        for name, metric in METRICS.items():
            if (value := number(data.get(name))) is None:
                continue
            values.setdefault((name, cell_of(data, metric)), {}).setdefault(unit, []).append(value)
    for key, units in values.items():
        ranges[key] = FigureRange(next(tuple(units[unit]) for unit in UNITS if unit in units))
    cells = sorted(ranges, key=lambda key: key[1])
    return {name: {key[1]: ranges[key] for key in cells if key[0] == name} for name in METRICS
            if any(key[0] == name for key in cells)}  # fmt: skip


@dataclass(frozen=True)
class FigureRow:
    """A figure in a cell: each run's values (None: not measured)."""

    metric: Metric
    cell: MatrixCell
    series: Sequence[FigureRange | None]

    @property
    def percent(self) -> Sequence[float | None]:
        """How far each run's median is from the first run's, in percent; None: nothing to compare."""
        first = self.series[0].median if self.series[0] else 0.0
        return [100 * (side.median - first) / abs(first) if side and first else None for side in self.series]

    def plain(self, names: Sequence[str]) -> dict[str, Any]:
        """For JSON."""
        values = {name: side.plain() for name, side in zip(names, self.series, strict=True) if side}
        return {"metric": self.metric.name, "unit": self.metric.unit, "cell": str(self.cell), "runs": values,
                "percent": dict(zip(names, self.percent, strict=True))}  # fmt: skip


def compare(records: Sequence[RunRecord]) -> list[FigureRow]:
    """All figures that a run has, in their cells."""
    tables = [table(record.samples) for record in records]
    return [
        FigureRow(metric, cell, [side.get(metric.name, {}).get(cell) for side in tables])
        for metric in METRICS.values()
        for cell in sorted({cell for side in tables for cell in side.get(metric.name, {})})
    ]


def sections(rows: Iterable[FigureRow], names: Sequence[str]) -> Iterator[tuple[str, list[Sequence[str]]]]:
    """A table for each figure: its title and lines, the first of which is the head."""
    for metric, same in groupby(rows, lambda row: row.metric):
        lines: list[Sequence[str]] = [("", *names, *(f"{name} - {names[0]}" for name in names[1:]))]
        for row in same:
            apart = ("-" if percent is None else f"{percent:+.1f} %" for percent in row.percent[1:])
            lines.append((str(row.cell), *(str(side) if side else "-" for side in row.series), *apart))
        yield f"{metric.label}, {metric.unit}: median (min to max, values)", lines


def differing(records: Sequence[RunRecord], names: Sequence[str]) -> list[str]:
    """What differs in environments and parameters: ``env.X: marlin in B; not recorded in A``."""
    lines: list[str] = []
    sides = [flat({**one.environment, "parameters": one.parameters}) for one in records]
    for key in sorted({key for side in sides for key in side}):
        groups: dict[str, list[str]] = {}
        for name, side in zip(names, sides, strict=True):
            groups.setdefault(side.get(key, "not recorded"), []).append(name)
        if len(groups) > 1:
            lines.append(f"{key}: " + "; ".join(f"{text} in {', '.join(who)}" for text, who in groups.items()))
    return lines


def flat(value: Any, prefix: str = "") -> dict[str, str]:
    """A nested value as ``a.b.c`` -> text; the server's arguments (``flags``) as ``flags.FLAG`` -> value."""
    if isinstance(value, (list, tuple)):
        words = [str(item) for item in value]
        if prefix != "flags":
            return {prefix: " ".join(words)}
        value = flags(words)
    if isinstance(value, Mapping):
        texts: dict[str, str] = {}
        for name, item in value.items():
            texts |= flat(item, f"{prefix}.{name}" if prefix else str(name))
        return texts
    return {} if value is None else {prefix: str(value)}


def flags(words: Sequence[str]) -> dict[str, str]:
    """Arguments as flag -> value: ``--a b``, ``--a=b``, ``--a`` (yes); several words of an option are joined."""
    values: dict[str, str] = {}
    name = "(other words)"
    for word in words:
        if word.startswith("--"):
            name, _, value = word.partition("=")
            values[name] = value
        else:
            values[name] = f"{values.get(name, '')} {word}".strip()
    return {name: value or "yes" for name, value in values.items()}
