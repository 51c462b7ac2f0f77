"""Figures of runs, and how far two are apart."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.bench.compare import FigureRange, MatrixCell, compare, differing, flags, sections, table
from envgen.bench.record import RunRecord

HERE = {"prompt_tokens": 64, "output_tokens": 32}
FINITE = st.floats(1e-3, 1e9)


def run(samples: list[dict[str, Any]], **environment: Any) -> RunRecord:
    when = datetime(2026, 1, 9, tzinfo=timezone.utc)
    return RunRecord(Path("x"), "1", "bench", when, environment, {}, "passed", {}, tuple(samples))


def repeats(*values: float, name: str = "decode_tps", **cell: Any) -> list[dict[str, Any]]:
    return [{**HERE, **cell, name: value} for value in values]


def test_what_is_not_finite_is_no_figure() -> None:
    values = (29.1, 31.6, 60.02)
    assert table(repeats(*values, math.nan)) == {("decode_tps", MatrixCell(32, 64)): FigureRange(values)}


@given(st.lists(FINITE, min_size=1), st.lists(FINITE, min_size=1))
def test_medians_lie_between_the_ends_and_their_difference_has_their_sign(a: list[float], b: list[float]) -> None:
    (row,) = compare(run(repeats(*a)), run(repeats(*b)))
    first, second = (side for side in row.sides if side)
    assert min(a) <= first.median <= max(a) and second.plain()["min"] == min(b)
    assert row.percent is not None
    assert (row.percent > 0) == (second.median > first.median) or row.percent == pytest.approx(0)


def test_both_sides_and_the_difference_are_shown() -> None:
    a, b = run(repeats(30.0, 31.0, 35.0)), run([*repeats(33.0), *repeats(9.0, prompt_tokens=8)])
    ((title, lines),) = sections(compare(a, b))
    assert title.startswith("decode") and lines == [
        ("", "A", "B", "B - A"),
        ("pp8 tg32", "-", "9.00 (9.00 to 9.00, 1)", "-"),
        ("pp64 tg32", "31.00 (30.00 to 35.00, CV 8.3 %, 3)", "33.00 (33.00 to 33.00, 1)", "+6.5 %"),
    ]


def test_what_differed() -> None:
    first = run([], env={"X": "1"}, flags=["--dtype", "bf16", "--eager"], image={"id": "a"})
    second = run([], env={"X": "2"}, flags=["--dtype", "bf16"], image={"id": "b"})
    assert differing(first, second) == [
        "env.X: 1 in A; 2 in B",
        "flags.--eager: yes in A; not recorded in B",
        "image.id: a in A; b in B",
    ]
    assert flags(["serve", "--a", "1", "2", "--b=x", "--c"]) == {
        "(other words)": "serve", "--a": "1 2", "--b": "x", "--c": "yes",
    }  # fmt: skip
