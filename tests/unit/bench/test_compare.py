"""Figures of runs, and whether two differ by more than chance: against numpy and scipy themselves."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from envgen.bench.compare import MatrixCell, compare, flags, table
from envgen.bench.record import RunRecord

HERE = {"prompt_tokens": 64, "output_tokens": 32}


def run(samples: list[dict[str, Any]], **environment: Any) -> RunRecord:
    when = datetime(2026, 1, 9, tzinfo=timezone.utc)
    return RunRecord(Path("x"), "1", "bench", when, environment, {}, "passed", {}, tuple(samples))


def repeats(*values: float, name: str = "decode_tps", **cell: Any) -> list[dict[str, Any]]:
    return [{"unit": "repeat", **HERE, **cell, name: value} for value in values]


def against(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for row in compare([run(a), run(b)]).rows if (one := row.against[1])]


def test_mean_and_spread_are_those_of_numpy() -> None:
    values = (29.1, 31.6, 60.02)
    others = [{**repeats(99.0)[0], **more} for more in ({"unit": "request"}, {"error": "x"}, {"decode_tps": math.nan})]
    found = table([*repeats(*values), *others])["decode_tps"][MatrixCell(32, 64)]
    assert found.mean == pytest.approx(np.mean(values)) and found.sd == pytest.approx(np.std(values)) and found.n == 3


def test_p_values_are_those_of_scipy() -> None:
    a, b = (30.0, 31.0, 30.5, 30.2), (33.0, 34.0, 33.5, 33.1)
    (found,) = against(repeats(*a), repeats(*b))
    assert found["p_welch"] == found["p_adjusted"] == pytest.approx(stats.ttest_ind(b, a, equal_var=False).pvalue)
    assert found["p_mann_whitney"] == pytest.approx(stats.mannwhitneyu(b, a).pvalue)
    assert found["verdict"] == "B is better than A"
    assert found["low_percent"] < found["percent"] < found["high_percent"]


def test_p_is_adjusted_for_the_number_of_cells() -> None:
    first, second = (
        [one for prompt in range(1, 9) for one in repeats(*values, prompt_tokens=prompt)]
        for values in ((30.0, 31.0, 30.5), (30.9, 31.4, 31.1))
    )
    for found in against(first, second):
        assert found["p_adjusted"] == pytest.approx(min(1.0, 8 * found["p_welch"]))


@pytest.mark.parametrize(
    ("a", "b", "why"),
    [
        (repeats(1.0, 2.0), repeats(1.0, 2.0, 3.0), "too few values: 2 and 3"),
        (repeats(5.0, 5.0, 5.0), repeats(5.0, 5.0, 5.0), "no spread"),
        (
            repeats(1.0, 2.0, 3.0, concurrency=4, unit="request"),
            repeats(1.0, 2.0, 3.0, concurrency=4),
            "parallel requests",
        ),
    ],
)
def test_what_is_not_tested(a: list[dict[str, Any]], b: list[dict[str, Any]], why: str) -> None:
    assert why in against(a, b)[0]["verdict"]


def test_more_milliseconds_are_worse() -> None:
    found = against(repeats(1.0, 1.1, 1.2, name="ttft_ms"), repeats(5.0, 5.1, 5.2, name="ttft_ms"))
    assert found[0]["verdict"] == "B is worse than A"


def test_what_differed() -> None:
    first = run([], env={"X": "1"}, flags=["--dtype", "bf16", "--eager"], image={"id": "a"})
    second = run([], env={"X": "2"}, flags=["--dtype", "bf16"], image={"id": "b"})
    assert compare([first, second]).differing == [
        "env.X: 1 in A; 2 in B",
        "flags.--eager: yes in A; not recorded in B",
        "image.id: a in A; b in B",
    ]
    assert flags(["serve", "--a", "1", "2", "--b=x", "--c"]) == {
        "(other words)": "serve", "--a": "1 2", "--b": "x", "--c": "yes",
    }  # fmt: skip


def test_kernels_are_compared_by_name_and_tokens() -> None:
    """Error and time of each; a kernel that only one run has is shown, and not compared."""

    def kernel(name: str, tokens: int, *times: float) -> list[dict[str, Any]]:
        cell = {"unit": "repeat", "kernel": name, "prompt_tokens": tokens}
        return [{**cell, "kernel_error": 0.6}, *({**cell, "kernel_us": one} for one in times)]

    before = [*kernel("moe", 1, 200, 201, 202), *kernel("moe", 16, 900, 905, 910), *kernel("attention", 1, 9, 10, 11)]
    after = [*kernel("moe", 16, 700, 705, 710), *kernel("moe", 1, 200, 201, 202.5)]
    rows = {(row.metric.name, str(row.cell)): row for row in compare([run(before), run(after)]).rows}
    faster = rows["kernel_us", "moe M=16"].against[1]
    assert faster and faster["verdict"] == "B is better than A" and faster["percent"] == pytest.approx(-22.1, abs=0.1)
    same = rows["kernel_us", "moe M=1"].against[1]
    assert same and same["verdict"] == "no difference shown"
    assert rows["kernel_us", "attention M=1"].series[1] is None and ("kernel_error", "moe M=1") in rows
