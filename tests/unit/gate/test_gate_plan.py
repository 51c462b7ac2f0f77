"""Who may start, who is paused: the gate's decision, without a clock, a process or a file."""

from __future__ import annotations

from typing import Any

import pytest
from gate_program import benchmark, gate

GIB = 1 << 30
NOW = 10_000.0


def waits(name: str, gib: float, seconds: float = 60.0, since: float = 0.0) -> Any:
    return gate.Entry(name, expect=int(gib * GIB), seconds=seconds, arrived=NOW - since)


def runs(
    name: str, expect: float, current: float, *, since: float = 10.0, top: float = 0.0, state: str = "running"
) -> Any:
    return gate.Entry(
        name, int(expect * GIB), 60.0, state=state, current=int(current * GIB),
        top=int(max(top, current) * GIB), arrived=NOW - since, started=NOW - since,
    )  # fmt: skip


def plan(entries: list[Any], free: float, cores: int = 20, reserve: float = 1.0) -> list[tuple[str, str]]:
    words = gate.plan(entries, int(free * GIB), int(reserve * GIB), cores, NOW)
    return [(entry.label, word) for entry, word in words.items()]


def test_what_fits_starts_and_the_longest_goes_first() -> None:
    entries = [waits("short", 1, 20), waits("long", 1, 300), waits("middle", 1, 90)]
    assert plan(entries, free=3.5) == [("long", "go"), ("middle", "go")]


def test_what_is_too_large_now_lets_smaller_ones_pass() -> None:
    assert plan([waits("large", 10, 150), waits("small", 1, 20)], free=6) == [("small", "go")]


def test_nothing_waits_for_ever() -> None:
    entries = [runs("r", 1, 1), waits("large", 10, 150, since=1000), waits("small", 1, 20)]
    assert plan(entries, free=6) == []
    assert plan(entries, free=11.5) == [("large", "go")]


def test_what_is_promised_to_those_who_still_grow_is_not_free() -> None:
    growing = runs("r", expect=8, current=2)
    assert plan([growing, waits("w", 3)], free=9) == []  # 9 - 1 reserve - 6 promised = 2
    assert plan([growing, waits("w", 3)], free=10) == [("w", "go")]


def test_past_its_peak_a_compiler_gives_most_of_its_promise_back() -> None:
    past = runs("r", expect=8, current=1, top=7.5)
    assert plan([past, waits("w", 5)], free=8) == [("w", "go")]
    assert plan([runs("r", expect=8, current=1, top=5), waits("w", 5)], free=8) == []


def test_a_compiler_that_hangs_is_promised_nothing_more() -> None:
    assert plan([runs("r", expect=8, current=1, since=599), waits("w", 5)], free=8) == []
    assert plan([runs("r", expect=8, current=1, since=601), waits("w", 5)], free=8) == [("w", "go")]


def test_a_slow_compiler_does_not_hang() -> None:
    slow = runs("r", expect=8, current=1, since=700)
    slow.seconds = 300.0  # last time
    assert plan([slow, waits("w", 5)], free=8) == []
    held_up = runs("r", expect=8, current=1, since=700)
    held_up.paused = 200.0
    assert plan([held_up, waits("w", 5)], free=8) == []


def test_cores_limit_too() -> None:
    entries = [runs("r", 1, 1), *[waits(f"w{n}", 0.5) for n in range(9)]]
    assert len(plan(entries, free=100, cores=4)) == 3


def test_one_compiler_always_runs() -> None:
    assert plan([waits("large", 10), waits("small", 5)], free=0.1) == [("small", "go")]
    assert plan([runs("p", 8, 4, state="paused")], free=0.1) == [("p", "continue")]


def test_below_the_reserve_the_youngest_are_paused_and_nothing_starts() -> None:
    entries = [
        runs("old", 2, 2, since=50),
        runs("young", 2, 2, since=5),
        runs("middle", 2, 2, since=20),
        waits("w", 0.1),
    ]
    assert plan(entries, free=0.9) == [("middle", "pause"), ("young", "pause")]
    # Close to the end, all but the oldest.
    assert plan([*entries, runs("other", 2, 2, since=30)], free=0.4) == [
        ("other", "pause"), ("middle", "pause"), ("young", "pause"),
    ]  # fmt: skip
    assert plan([runs("old", 2, 2)], free=0.1) == []


def test_the_paused_go_on_before_anything_new_starts() -> None:
    entries = [runs("r", 2, 2), runs("p", 8, 4, state="paused"), waits("w", 1)]
    assert plan(entries, free=4) == []
    assert plan(entries, free=5.5) == [("p", "continue")]
    assert plan(entries, free=6.5) == [("p", "continue"), ("w", "go")]


def test_an_entry_follows_the_words_of_its_scheduler() -> None:
    entry = waits("w", 1)
    for now, word in enumerate(("go", "pause", "pause", "continue", "continue", "")):
        entry.obey(word, now * 10.0)
    assert (entry.state, entry.started, entry.paused) == ("running", 0.0, 20.0)
    assert vars(gate.Entry(**vars(entry))) == vars(entry)


def test_time_left() -> None:
    assert (gate.left([], NOW), gate.left([runs("r", 1, 1, since=20)], NOW)) == (0, pytest.approx(40))
    assert gate.left([runs("a", 1, 1, since=60), runs("b", 1, 1, since=60), waits("w", 1, 60)], NOW) == 60
    assert gate.left([runs("takes longer", 1, 1, since=91), runs("b", 1, 1, since=10)], NOW) == 0


@pytest.mark.parametrize("gib", [16, 24, 32, 48])
def test_on_the_recorded_build_it_is_faster_than_a_divisor_and_within_the_budget(gib: int) -> None:
    objects = benchmark.trace()
    before = benchmark.simulate(objects, benchmark.fixed(gib // 8))
    for learned in (False, True):
        after = benchmark.simulate(objects, benchmark.gated(gate, gib * 1024, 20, learned))
        assert before.seconds / after.seconds >= 1.8
        assert after.peak <= gib * 1024
