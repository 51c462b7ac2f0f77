"""Two or more runs side by side: the matrix of figures, the tests against the first run, what differed."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from envgen.results import stats
from envgen.results.differ import Differing, differences
from envgen.results.figures import Cell, Series, Table, table
from envgen.results.model import METRICS, Metric, Record
from envgen.results.stats import Difference


@dataclass(frozen=True)
class Row:
    """One cell of one figure: what each run says of it (None: nothing), and each later run against the first."""

    metric: Metric
    cell: Cell
    series: tuple[Series | None, ...]
    against: tuple[Difference | None, ...]  # one a run; the first is always None

    @property
    def name(self) -> str:
        """``pp2048 tg32``."""
        return self.cell.name(self.metric)


@dataclass(frozen=True)
class Comparison:
    """Runs called A, B, C..., their rows and what is not the same in all of them."""

    names: tuple[str, ...]
    records: tuple[Record, ...]
    rows: tuple[Row, ...]
    differing: tuple[Differing, ...]


def title(record: Record) -> str:
    """What a run is called in a table: profile and variant, the label of imported figures, else the model."""
    environment = record.environment
    imported = environment.get("imported")
    if isinstance(imported, Mapping):
        return str(imported.get("label") or record.id)
    words = [str(environment[key]) for key in ("profile", "variant") if environment.get(key)]
    return " ".join(words) or str(environment.get("model") or record.id)


def compare(records: Sequence[Record]) -> Comparison:
    """The comparison of one run or more; every test is against the first."""
    tables = [table(record.samples) for record in records]
    rows = [(metric, cell) for name, metric in METRICS.items() for cell in _cells(tables, name)]
    found = [[one.get(metric.name, {}).get(cell) for one in tables] for metric, cell in rows]
    tested = _against_first([cell for _metric, cell in rows], found)
    return Comparison(
        names=tuple(string.ascii_uppercase[: len(records)]),
        records=tuple(records),
        rows=tuple(
            Row(metric, cell, tuple(series), tuple(against))
            for (metric, cell), series, against in zip(rows, found, tested, strict=True)
        ),
        differing=tuple(differences(records)),
    )


def _cells(tables: Sequence[Table], name: str) -> list[Cell]:
    return sorted({cell for one in tables for cell in one.get(name, {})})


def _against_first(cells: list[Cell], found: list[list[Series | None]]) -> list[list[Difference | None]]:
    """Each later run's cells are tested together, because p is adjusted for their number."""
    result: list[list[Difference | None]] = [[None] * len(series) for series in found]
    for column in range(1, len(found[0]) if found else 0):
        rows: list[int] = []
        pairs: list[tuple[Cell, Series, Series]] = []
        for row, series in enumerate(found):
            first, other = series[0], series[column]
            if first is not None and other is not None:
                rows.append(row)
                pairs.append((cells[row], first, other))
        for row, difference in zip(rows, stats.compare(pairs), strict=True):
            result[row][column] = difference
    return result


def verdict(metric: Metric, difference: Difference, first: str, other: str) -> str:
    """The difference in words."""
    if difference.untested:
        return f"not tested ({difference.untested})"
    if not difference.significant:
        return "no difference shown"
    better = (difference.percent > 0) == metric.more_is_better
    return f"{other} is {'better' if better else 'worse'} than {first}"
