"""Figures of repeated measurements: mean, standard deviation, coefficient of variation, percentiles."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from envgen.percentile import percentile


@dataclass(frozen=True)
class Figure:
    """``sd`` is the sample's standard deviation (n - 1), 0 for one value."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def sd(self) -> float:
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0

    @property
    def cv(self) -> float:
        """The standard deviation as a part of the mean (0.02 = 2 %)."""
        return self.sd / self.mean if self.mean else 0.0

    def plain(self) -> dict[str, float | int]:
        """As a mapping for JSON and for the record."""
        return {"mean": round(self.mean, 3), "sd": round(self.sd, 3), "cv": round(self.cv, 4), "n": len(self.values)}

    def __str__(self) -> str:
        return f"{self.mean:,.2f} ± {self.sd:,.2f}"


def figure(values: Sequence[float | None]) -> Figure | None:
    """The figure of the values that there are; None when there are none."""
    known = tuple(value for value in values if value is not None)
    return Figure(known) if known else None


def rounded_percentile(values: Sequence[float], percent: float) -> float | None:
    """A percentile as records hold it; None for no values."""
    return round(percentile(values, percent), 3) if values else None
