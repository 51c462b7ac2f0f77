"""The one definition of a percentile: between neighbours it is interpolated, as numpy and `vllm bench serve` do."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that ``percent`` of ``values`` are at or below. ValueError where there are none."""
    if not values:
        raise ValueError("no values have no percentile")
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
