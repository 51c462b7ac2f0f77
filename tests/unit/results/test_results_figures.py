"""Cells, means and spreads from samples, and the tests on them, against figures that were computed elsewhere."""

from __future__ import annotations

import math
import random
import statistics
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envgen.results import stats
from envgen.results.figures import Cell, Series, headline, requests, series_of, table
from envgen.results.matrix import verdict
from envgen.results.model import METRICS, Sample, frozen

CELL = Cell(32, 2048, 0, 1)


def _samples(*data: dict[str, Any]) -> list[Sample]:
    return [Sample(0.0, frozen(item)) for item in data]


def test_a_figure_of_the_prompt_joins_all_output_lengths() -> None:
    found = table(
        _samples(
            {"prompt_tokens": 2048, "output_tokens": 32, "prefill_tps": 4000.0, "decode_tps": 31.0},
            {"prompt_tokens": 2048, "output_tokens": 128, "prefill_tps": 4200.0, "decode_tps": 33.0},
        )
    )
    assert {cell.name(METRICS["prefill_tps"]): s.values for cell, s in found["prefill_tps"].items()} == {
        "pp2048": (4000.0, 4200.0)
    }
    assert [cell.name(METRICS["decode_tps"]) for cell in found["decode_tps"]] == ["pp2048 tg32", "pp2048 tg128"]


def test_depth_and_concurrency_are_cells_of_their_own() -> None:
    base = {"prompt_tokens": 512, "output_tokens": 16, "decode_tps": 1.0}
    found = table(_samples(base, {**base, "context_tokens": 4096}, {**base, "concurrency": 8}, {"decode_tps": 2.0}))
    names = [cell.name(METRICS["decode_tps"]) for cell in found["decode_tps"]]
    assert names == ["pp? tg?", "pp512 tg16", "pp512 tg16 c8", "pp512 tg16 @ d4096"]


def test_repetitions_count_before_requests_and_warm_ups_and_errors_never() -> None:
    cell = {"prompt_tokens": 1, "output_tokens": 1}
    samples = _samples(
        {**cell, "unit": "request", "decode_tps": 1.0},
        {**cell, "unit": "repeat", "decode_tps": 5.0},
        {**cell, "unit": "repeat", "decode_tps": 7.0},
        {**cell, "unit": "repeat", "decode_tps": 900.0, "warmup": True},
        {**cell, "unit": "repeat", "decode_tps": 900.0, "error": "HTTP 500"},
        {**cell, "unit": "aggregate", "decode_tps": 900.0},
        {**cell, "unit": "other", "decode_tps": 900.0},
        {**cell, "decode_tps": "nan"},
        {**cell, "decode_tps": True},
        {**cell, "decode_tps": 10**400},
    )
    (series,) = table(samples)["decode_tps"].values()
    assert (series.values, series.unit, series.mean) == ((5.0, 7.0), "repeat", 6.0)
    assert requests(samples, "decode_tps") == {Cell(1, 1, 0, 1): (1.0,)}


def test_one_value_has_no_spread() -> None:
    (series,) = table(_samples({"decode_tps": 3.0}))["decode_tps"].values()
    assert series.n == 1 and math.isnan(series.sd)


@given(
    st.lists(st.lists(st.floats(1, 1e4), min_size=2, max_size=8), min_size=1, max_size=4),
)
def test_pooled_means_are_those_of_all_values(groups: list[list[float]]) -> None:
    data = [
        {
            "unit": "aggregate",
            "decode_tps": statistics.fmean(group),
            "spread": {"decode_tps": statistics.stdev(group)},
            "runs": len(group),
        }
        for group in groups
    ]
    (series,) = table(_samples(*data))["decode_tps"].values()
    whole = [value for group in groups for value in group]
    assert series.n == len(whole)
    assert series.mean == pytest.approx(statistics.fmean(whole))
    assert series.sd == pytest.approx(statistics.stdev(whole), rel=1e-6, abs=1e-6)


def test_means_without_spread_are_not_pooled() -> None:
    (series,) = table(
        _samples({"unit": "aggregate", "decode_tps": 10.0, "runs": 3}, {"unit": "aggregate", "decode_tps": 20.0})
    )["decode_tps"].values()
    assert (series.mean, series.n, series.values) == (20.0, 0, ())


@given(st.dictionaries(st.sampled_from([*METRICS, "prompt_tokens", "output_tokens", "concurrency", "unit", "spread"]),
                       st.none() | st.text() | st.floats() | st.integers() | st.lists(st.integers())))  # fmt: skip
def test_no_sample_breaks_the_table(data: dict[str, Any]) -> None:
    headline(table(_samples(data)))


# Student's sleep data; t = -1.8608, df = 17.776, p = 0.07939, interval -3.365 … 0.2055 as R's manual prints them.
SLEEP_1 = (0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0)
SLEEP_2 = (1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4)


def test_welch_agrees_with_the_textbook() -> None:
    (found,) = stats.compare([(CELL, series_of(SLEEP_2, "repeat"), series_of(SLEEP_1, "repeat"))])
    assert found.p == pytest.approx(0.07939, abs=5e-6)
    mean = statistics.fmean(SLEEP_2)
    assert found.low * mean / 100 == pytest.approx(-3.365, abs=1e-3)
    assert found.high * mean / 100 == pytest.approx(0.2055, abs=1e-4)
    assert not found.significant


def test_the_permutation_test_counts_every_deal() -> None:
    # 2 of the 20 ways to deal six values out are as far apart as this one.
    (found,) = stats.compare([(CELL, series_of((1.0, 2.0, 3.0), "repeat"), series_of((7.0, 8.0, 9.0), "repeat"))])
    assert found.exact == pytest.approx(0.1)
    assert found.effect == pytest.approx(6.0 * (1 - 3 / 15))


@pytest.mark.parametrize(
    ("a", "b", "cell", "why"),
    [
        (series_of((1.0, 2.0), "repeat"), series_of((10.0, 20.0, 30.0), "repeat"), CELL, "too few samples: 2 and 3"),
        (Series((), "aggregate", 1.0, 0.1, 10), series_of((1.0, 2.0, 3.0), "repeat"), CELL, "imported"),
        (series_of((1.0,) * 3, "repeat"), series_of((2.0,) * 3, "repeat"), CELL, "no spread at all"),
        (series_of((1.0, 2.0, 3.0), "request"), series_of((5.0, 6.0, 7.0), "repeat"), Cell(1, 1, 0, 8), "side by side"),
    ],
)
def test_what_cannot_be_tested_is_never_called_significant(a: Series, b: Series, cell: Cell, why: str) -> None:
    (found,) = stats.compare([(cell, a, b)])
    assert why in found.untested
    assert not found.significant
    assert math.isnan(found.p)
    assert "not tested" in verdict(METRICS["decode_tps"], found, "A", "B")


def test_better_depends_on_the_figure() -> None:
    slow, fast = series_of((10.0, 10.1, 10.2, 10.1), "repeat"), series_of((20.0, 20.1, 20.2, 20.1), "repeat")
    (found,) = stats.compare([(CELL, slow, fast)])
    assert found.significant
    assert verdict(METRICS["decode_tps"], found, "A", "B") == "B is better than A"
    assert verdict(METRICS["ttft_ms"], found, "A", "B") == "B is worse than A"


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.floats(1, 100), min_size=3, max_size=5), min_size=2, max_size=6))
def test_adjusted_p_is_never_below_p_and_keeps_its_order(groups: list[list[float]]) -> None:
    base = series_of((50.0, 51.0, 49.0, 50.5), "repeat")
    found = [d for d in stats.compare([(CELL, base, series_of(g, "repeat")) for g in groups]) if not d.untested]
    ordered = sorted(found, key=lambda d: d.p)
    assert all(d.p <= d.adjusted <= 1 for d in found)
    assert [d.adjusted for d in ordered] == sorted(d.adjusted for d in found)


def test_where_nothing_differs_few_tables_claim_a_difference() -> None:
    chance = random.Random(7)

    def drawn() -> Series:
        return series_of([chance.gauss(60, 0.3) for _ in range(10)], "repeat")

    claims = [
        any(d.significant for d in stats.compare([(CELL, drawn(), drawn()) for _ in range(8)])) for _ in range(60)
    ]
    assert sum(claims) <= 6  # 3 expected; without the adjustment it would be 20


def test_a_real_difference_is_found() -> None:
    chance = random.Random(7)
    a = series_of([chance.gauss(60, 0.3) for _ in range(10)], "repeat")
    b = series_of([chance.gauss(61, 0.3) for _ in range(10)], "repeat")
    (found,) = stats.compare([(CELL, a, b)])
    assert found.significant and found.low < 100 / 60 < found.high
