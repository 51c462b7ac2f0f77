"""Is a difference more than chance? Welch's t-test, and where it can be counted out the exact permutation test."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from envgen.extras import require
from envgen.results.figures import Cell, Series

ALPHA = 0.05
FEWEST = 3  # samples a side: with two, the spread is a guess
# Up to so many ways to deal the samples out, all are counted (9 against 9 is 48,620).
EXACT_LIMIT = 50_000


@dataclass(frozen=True)
class Difference:
    """B against A in one cell. NaN where a figure does not exist; ``untested`` says why there is no p.

    ``percent`` = B's mean above A's, ``low`` and ``high`` = its 95 % confidence interval; ``p`` = Welch, ``adjusted`` =
    p after Holm over all cells of the two runs, ``exact`` = permutation test; ``effect`` = Hedges' g.
    """

    percent: float
    low: float = math.nan
    high: float = math.nan
    p: float = math.nan
    adjusted: float = math.nan
    exact: float = math.nan
    effect: float = math.nan
    untested: str = ""

    @property
    def significant(self) -> bool:
        """Below 5 %, adjusted for the number of comparisons."""
        return not self.untested and self.adjusted < ALPHA


def why_untested(cell: Cell, a: Series, b: Series) -> str:
    """Why these two may not be tested, or an empty text."""
    if not a.values or not b.values:
        return "no samples: imported figures"
    if min(a.n, b.n) < FEWEST:
        return f"too few samples: {a.n} and {b.n}, {FEWEST} each are needed"
    if "request" in (a.unit, b.unit) and cell.concurrency != 1:
        return "requests that ran side by side are not independent, and there are no repetitions"
    return ""


def compare(pairs: Sequence[tuple[Cell, Series, Series]]) -> list[Difference]:
    """Test each pair; p is adjusted over all pairs that could be tested.

    By Holm's method: where nothing differs, at most one table in twenty calls anything in it significant.
    """
    require("bench")
    found = [_compare(cell, a, b) for cell, a, b in pairs]
    tested = sorted((d.p, index) for index, d in enumerate(found) if not d.untested)
    floor = 0.0
    for rank, (p, index) in enumerate(tested):
        floor = max(floor, min(1.0, p * (len(tested) - rank)))
        found[index] = _replace(found[index], adjusted=floor)
    return found


def _replace(difference: Difference, **changes: Any) -> Difference:
    import dataclasses

    return dataclasses.replace(difference, **changes)


def _compare(cell: Cell, a: Series, b: Series) -> Difference:
    percent = 100 * (b.mean - a.mean) / abs(a.mean) if a.mean else math.nan
    untested = why_untested(cell, a, b)
    if untested:
        return Difference(percent, untested=untested)
    if a.sd == 0 and b.sd == 0:
        return Difference(percent, untested="no spread at all: the samples are copies, or too coarse")
    from scipy import stats

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # nearly equal samples: scipy warns of lost digits
        welch = stats.ttest_ind(b.values, a.values, equal_var=False)
        interval = welch.confidence_interval(1 - ALPHA)
    scale = 100 / abs(a.mean) if a.mean else math.nan
    return Difference(
        percent,
        low=float(interval.low) * scale,
        high=float(interval.high) * scale,
        p=float(welch.pvalue),
        exact=_exact(a, b),
        effect=_hedges(a, b),
    )


def _exact(a: Series, b: Series) -> float:
    if math.comb(a.n + b.n, a.n) > EXACT_LIMIT:
        return math.nan
    from scipy import stats

    found = stats.permutation_test((a.values, b.values), _mean_difference, vectorized=True, n_resamples=math.inf)
    return float(found.pvalue)


def _mean_difference(a: Any, b: Any, axis: int) -> Any:
    return b.mean(axis=axis) - a.mean(axis=axis)


def _hedges(a: Series, b: Series) -> float:
    """The difference in pooled standard deviations, corrected for few samples."""
    degrees = a.n + b.n - 2
    pooled = math.sqrt(((a.n - 1) * a.sd**2 + (b.n - 1) * b.sd**2) / degrees)
    return (b.mean - a.mean) / pooled * (1 - 3 / (4 * degrees - 1))
