"""Figures of runs, and whether two differ by more than chance: against numpy and scipy themselves."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from envgen.bench.compare import Cell, compare, flags, table
from envgen.bench.record import METRICS, Record


def run(samples: list[dict[str, Any]], **environment: Any) -> Record:
    when = datetime(2026, 1, 9, tzinfo=timezone.utc)
    return Record(Path("x"), "1", "bench", when, environment, {}, "passed", {}, tuple(samples))


def repeats(*values: float, name: str = "decode_tps", **cell: Any) -> list[dict[str, Any]]:
    return [{"unit": "repeat", "prompt_tokens": 64, "output_tokens": 32, **cell, name: value} for value in values]


def test_mean_and_spread_are_those_of_numpy() -> None:
    values = (29.1, 31.6, 60.02)
    found = table(repeats(*values))["decode_tps"][Cell(32, 64)]
    assert found.mean == pytest.approx(np.mean(values)) and found.sd == pytest.approx(np.std(values)) and found.n == 3


def test_repetitions_count_before_requests_and_errors_not_at_all() -> None:
    samples = [
        *repeats(10.0, 20.0),
        {"unit": "request", "prompt_tokens": 64, "output_tokens": 32, "decode_tps": 99.0},
        {"unit": "repeat", "prompt_tokens": 64, "output_tokens": 32, "decode_tps": 99.0, "error": "x"},
        {"unit": "repeat", "prompt_tokens": 64, "output_tokens": 32, "decode_tps": math.nan},
    ]
    assert table(samples)["decode_tps"][Cell(32, 64)].values == (10.0, 20.0)


def test_means_of_others_are_pooled_where_their_spread_is_known() -> None:
    one = {"unit": "aggregate", "prompt_tokens": 8, "prefill_tps": 10.0, "runs": 2, "spread": {"prefill_tps": 1.0}}
    found = table([one, {**one, "prefill_tps": 20.0}])["prefill_tps"][Cell(-1, 8)]
    assert (found.mean, found.n) == (15.0, 4) and found.sd == pytest.approx(np.std([9, 11, 19, 21]))
    bare = {"unit": "aggregate", "prompt_tokens": 8, "prefill_tps": 7.0}
    assert table([one, bare])["prefill_tps"][Cell(-1, 8)].mean == 7.0


def test_cells_are_called_as_llama_bench_calls_them() -> None:
    assert str(Cell(32, 2048, 4096, 8)) == "pp2048 tg32 @ d4096 c8" and str(Cell()) == "pp?"


def test_p_values_are_those_of_scipy() -> None:
    a, b = (30.0, 31.0, 30.5, 30.2), (33.0, 34.0, 33.5, 33.1)
    found = compare([run(repeats(*a)), run(repeats(*b))])
    (row,) = found.rows
    difference = row.against[1]
    assert difference is not None
    assert difference.p_welch == pytest.approx(stats.ttest_ind(b, a, equal_var=False).pvalue)
    assert difference.p_mann_whitney == pytest.approx(stats.mannwhitneyu(b, a).pvalue)
    assert difference.p_adjusted == difference.p_welch and row.verdict(1, found.names) == "B is better than A"
    assert difference.low_percent < difference.percent < difference.high_percent


def test_p_is_adjusted_for_the_number_of_cells() -> None:
    a, b = (30.0, 31.0, 30.5), (30.9, 31.4, 31.1)
    cells = [(a, b, prompt) for prompt in range(1, 9)]
    first = [one for a, _, p in cells for one in repeats(*a, prompt_tokens=p)]
    second = [one for _, b, p in cells for one in repeats(*b, prompt_tokens=p)]
    for row in compare([run(first), run(second)]).rows:
        assert row.against[1] and row.against[1].p_adjusted == pytest.approx(min(1.0, 8 * row.against[1].p_welch))


@pytest.mark.parametrize(
    ("a", "b", "why"),
    [
        (repeats(1.0, 2.0), repeats(1.0, 2.0, 3.0), "too few values: 2 and 3"),
        (
            [{"unit": "aggregate", "decode_tps": 3.0, "prompt_tokens": 64, "output_tokens": 32}],
            repeats(1.0),
            "no values",
        ),
        (repeats(5.0, 5.0, 5.0), repeats(5.0, 5.0, 5.0), "no spread at all"),
        (repeats(1.0, 2.0, 3.0, concurrency=4, unit="request"), repeats(1.0, 2.0, 3.0, concurrency=4), "side by side"),
    ],
)
def test_what_is_not_tested(a: list[dict[str, Any]], b: list[dict[str, Any]], why: str) -> None:
    found = compare([run(a), run(b)])
    assert why in found.rows[0].verdict(1, found.names)


def test_more_milliseconds_are_worse() -> None:
    values = ((1.0, 1.1, 1.2), (5.0, 5.1, 5.2))
    found = compare([run(repeats(*one, name="ttft_ms")) for one in values])
    assert found.rows[0].verdict(1, found.names) == "B is worse than A" and not METRICS["ttft_ms"].more_is_better


def test_what_differed() -> None:
    first = run([], env={"X": "1"}, flags=["--dtype", "bf16", "--eager"], image={"id": "sha256:" + "a" * 64})
    second = run([], env={"X": "2"}, flags=["--dtype", "bf16"], image={"id": "sha256:" + "b" * 64})
    assert compare([first, second]).differing == (
        "env.X: 1 in A; 2 in B",
        "flags.--eager: yes in A; not recorded in B",
        f"image.id: sha256:{'a' * 12}… in A; sha256:{'b' * 12}… in B",
    )


def test_flags() -> None:
    assert flags(["serve", "--a", "1", "2", "--b=x", "--c"]) == {
        "(other words)": "serve", "--a": "1 2", "--b": "x", "--c": "yes",
    }  # fmt: skip
