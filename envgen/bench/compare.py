"""Figures from samples, and the comparison of two runs: their medians, and what differed in their
environments.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from envgen.bench.record import METRICS, Metric, RunRecord
from envgen.binding import JsonDict, JsonObject
from envgen.profile.flags import parsed

SIDES = ("A", "B")


@dataclass(frozen=True, order=True)
class MatrixCell:
    """A cell of the test matrix, in tokens; -1: unknown. Figures of the prompt alone have no
    ``output``.
    """

    output: int = -1
    prompt: int = -1
    context: int = 0
    concurrency: int = 1

    def __str__(self) -> str:
        """llama-bench's name of the test: ``pp2048 tg32 @ d4096 c8``."""
        prompt = "pp?" if self.prompt < 0 else f"pp{self.prompt}"
        output = f" tg{self.output}" if self.output >= 0 else ""
        return prompt + output + self.place

    @property
    def place(self) -> str:
        """Context and concurrency, as the name has them."""
        depth = f" @ d{self.context}" if self.context else ""
        return depth + (f" c{self.concurrency}" if self.concurrency != 1 else "")

    @property
    def sample(self) -> dict[str, int]:
        """The cell as a record names it."""
        return {
            "prompt_tokens": self.prompt,
            "output_tokens": self.output,
            "context_tokens": self.context,
            "concurrency": self.concurrency,
        }


@dataclass(frozen=True)
class FigureRange:
    """The values of a figure in a cell."""

    values: Sequence[float]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def variation(self) -> float | None:
        """The coefficient of variation, in percent; None for a single value."""
        mean = statistics.fmean(self.values)
        if not mean or len(self.values) < 2:
            return None
        return 100 * statistics.stdev(self.values) / mean

    def plain(self) -> JsonDict:
        """For JSON."""
        return {
            "min": min(self.values),
            "median": self.median,
            "max": max(self.values),
            "variation": self.variation,
            "values": list(self.values),
        }

    def __str__(self) -> str:
        spread = "" if self.variation is None else f", CV {self.variation:.1f} %"
        ends = f"{min(self.values):,.2f} to {max(self.values):,.2f}"
        return f"{self.median:,.2f} ({ends}{spread}, {len(self.values)})"


Table = Mapping[tuple[str, MatrixCell], FigureRange]  # by the figure's name and cell


def number(value: Any) -> float | None:
    """A finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < 1e300 else None  # False for NaN too


def median_of(cell: JsonObject, name: str) -> float | None:
    """The median of a figure in a cell of a summary."""
    figure = cell.get(name)
    return number(figure.get("median")) if isinstance(figure, Mapping) else None


def cell_of(data: JsonObject, metric: Metric) -> MatrixCell:
    """The cell of a sample's value of ``metric``."""

    def length(name: str, default: int) -> int:
        value = number(data.get(name))
        if value is None or not 0 <= value <= 1e12:
            return default
        return int(value)

    output = length("output_tokens", -1) if metric.by_output else -1
    prompt = length("prompt_tokens", -1)
    context = length("context_tokens", 0)
    return MatrixCell(output, prompt, context, length("concurrency", 1))


def table(samples: Iterable[JsonObject]) -> Table:
    """All figures of a run, with their values."""
    values = defaultdict[tuple[str, MatrixCell], list[float]](list)
    for data in samples:
        for name, metric in METRICS.items():
            value = number(data.get(name))
            if value is None:
                continue
            cell = cell_of(data, metric)
            values[name, cell].append(value)
    return {key: FigureRange(tuple(measured)) for key, measured in values.items()}


@dataclass(frozen=True)
class FigureRow:
    """A figure in a cell: the values of both runs (None: not measured)."""

    metric: Metric
    cell: MatrixCell
    sides: tuple[FigureRange | None, FigureRange | None]

    @property
    def percent(self) -> float | None:
        """How far B's median is from A's, in percent; None: nothing to compare."""
        a, b = self.sides
        if not a or not b or not a.median:
            return None
        return 100 * (b.median - a.median) / abs(a.median)

    def plain(self) -> JsonDict:
        """For JSON."""
        values = {}
        for name, side in zip(SIDES, self.sides, strict=True):
            if side:
                values[name] = side.plain()
        return {
            "metric": self.metric.name,
            "unit": self.metric.unit,
            "cell": str(self.cell),
            "runs": values,
            "percent": self.percent,
        }


def compare(a: RunRecord, b: RunRecord) -> list[FigureRow]:
    """All figures that a run has, in their cells."""
    first = table(a.samples)
    second = table(b.samples)
    order = list(METRICS)
    keys = sorted({*first, *second}, key=lambda key: (order.index(key[0]), key[1]))
    rows = []
    for key in keys:
        name, cell = key
        sides = first.get(key), second.get(key)
        rows.append(FigureRow(METRICS[name], cell, sides))
    return rows


def sections(rows: Iterable[FigureRow]) -> Iterator[tuple[str, list[Sequence[str]]]]:
    """A table for each figure: its title and lines, the first of which is the head."""
    for metric, same in groupby(rows, lambda row: row.metric):
        lines: list[Sequence[str]] = [("", *SIDES, "B - A")]
        for row in same:
            cell = str(row.cell)
            sides = [str(side or "-") for side in row.sides]
            apart = "-"
            if row.percent is not None:
                apart = f"{row.percent:+.1f} %"
            lines.append((cell, *sides, apart))
        spread = "median (min to max, coefficient of variation, values)"
        yield f"{metric.label}, {metric.unit}: {spread}", lines


def differing(a: RunRecord, b: RunRecord, names: Sequence[str] = SIDES) -> list[str]:
    """What differs in environments and parameters: ``env.X: marlin in A; not recorded in B``."""
    first, second = (
        flat({**record.environment, "parameters": record.parameters}) for record in (a, b)
    )
    return [
        f"{key}: {first.get(key, 'not recorded')} in {names[0]}; {second.get(key, 'not recorded')} in {names[1]}"
        for key in sorted({*first, *second})
        if first.get(key) != second.get(key)
    ]


def flat(value: Any, prefix: str = "") -> dict[str, str]:
    """A nested value as ``a.b.c`` -> text; the server's arguments (``flags``) as ``flags.FLAG`` ->
    value.
    """
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
    """Arguments as flag -> value; "yes" for a flag without one. The last of equal flags counts."""
    values = {}
    others = list[str]()
    for flag in parsed(words):
        if not flag.word:
            others += flag.values
            continue
        name = f"--{flag.name}" if flag.name else flag.word
        values[name] = " ".join(flag.values) or "yes"
    if others:
        values["(other words)"] = " ".join(others)
    return values
