"""Texts and figures of records as people read them, on a terminal and on a page."""

from __future__ import annotations

import math
from typing import Any

from envgen.results.figures import Series
from envgen.results.stats import Difference


def safe(value: Any) -> str:
    """A text from a record; what could steer its reader (escapes, line breaks, reversed text) is spelled out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(value))


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
