"""Figures and verdicts, on made-up probabilities. The limits were measured on real servers (docs/seen.md)."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.bench import answers
from envgen.bench.answers import Agreement, Answer, Row, Step, agreement, divergence, first, repeats, shared, verdict
from envgen.bench.questions import questions
from envgen.bench.record import RunRecord, encode
from envgen.engine.values import read_json
from envgen.errors import UsageError

STEPS = st.dictionaries(st.integers(0, 30), st.floats(-30, 0), min_size=1, max_size=8)
TEXTS = st.lists(st.integers(0, 3), max_size=20)
SURE: Step = {1: -0.01, 2: -5.0, 3: -6.0}


@given(STEPS, STEPS)
def test_a_divergence_is_finite_and_not_negative_and_none_from_itself(a: Step, b: Step) -> None:
    assert 0 <= divergence(a, b) < 100 and divergence(a, a) == pytest.approx(0, abs=1e-12)


@given(STEPS, st.floats(-5, 5))
def test_a_constant_in_all_probabilities_is_no_divergence(a: Step, by: float) -> None:
    assert divergence(a, {token: value + by for token, value in a.items()}) == pytest.approx(0, abs=1e-9)


def test_a_divergence_by_hand() -> None:
    a, b = {1: math.log(0.5), 2: math.log(0.5)}, {1: math.log(0.25), 2: math.log(0.75)}
    assert divergence(a, b) == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3))
    assert divergence({1: -0.1, 2: -3.0}, {7: -0.1, 8: -3.0}) > 0.3  # nothing in common


@given(st.lists(STEPS, min_size=1))
def test_a_server_is_the_same_as_itself(steps: list[Step]) -> None:
    found = agreement(zip(steps, steps, strict=True))
    assert found.verdict == answers.SAME and found.agreed == found.places == len(steps)


@given(st.lists(st.tuples(STEPS, STEPS)), st.lists(st.tuples(STEPS, STEPS)))
def test_texts_together_are_as_one_text(one: list[tuple[Step, Step]], two: list[tuple[Step, Step]]) -> None:
    whole, parts = agreement([*one, *two]), answers.together([agreement(one), agreement(two)])
    assert replace(parts, mean=0, worst=0) == replace(whole, mean=0, worst=0)
    assert parts.mean == pytest.approx(whole.mean)


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (Agreement(), answers.UNKNOWN),
        (Agreement(100, 100, 0.0, 0.0), answers.SAME),
        (Agreement(100, 97, 0.001, 0.02), answers.CLOSE),
        (Agreement(100, 97, 0.001, 0.02, clear=1), answers.DIFFERENT),
        (Agreement(100, 100, 2 * answers.MEAN, 0.3), answers.DIFFERENT),
        (Agreement(100, 100, 0.001, 2 * answers.LARGEST), answers.DIFFERENT),
        (Agreement(100, 40, 1.0, 3.0), answers.BROKEN),
        (Agreement(100, 99, 0.0, 0.0, odd=1), answers.BROKEN),
    ],
)
def test_the_verdict_of_figures(found: Agreement, word: str) -> None:
    assert found.verdict == word


def test_a_fault_of_one_text_is_not_lost_among_the_others() -> None:
    """A window that is too small shows in long texts alone. A text of a few places has no mean of its own."""
    other: Step = {1: -0.05, 2: -3.5, 3: -5.0}
    right, wrong = [agreement([(SURE, SURE)] * 30)] * 30, agreement([(SURE, other)] * 6)
    whole = answers.together([*right, wrong])
    assert whole.mean < answers.MEAN and whole.worst > answers.TEXT and whole.verdict == answers.DIFFERENT
    assert answers.together([*right, agreement([(SURE, other)] * 5)]).verdict == answers.CLOSE


def test_what_is_not_finite_is_counted_and_what_is_not_there_is_not_compared() -> None:
    found = agreement([(SURE, {1: math.nan, 2: -1.0}), (SURE, {}), ({}, SURE), (SURE, SURE)])
    assert (found.places, found.odd, found.verdict) == (2, 1, answers.BROKEN)


def test_disagreement_is_clear_only_beyond_rounding() -> None:
    near: Step = {1: -0.70, 2: -0.69}
    assert agreement([(near, {1: -0.69, 2: -0.70})]).clear == 0
    assert agreement([(SURE, {2: -0.1, 1: -2.0})]).clear == 1
    assert first({5: -1.0, 4: -1.0}) == 4


@given(TEXTS, TEXTS)
def test_places_with_the_same_words_before_them(a: list[int], b: list[int]) -> None:
    count = shared(a, b)
    assert a[: count - 1] == b[: count - 1] or count == 0
    assert count == min(len(a), len(b)) or a[count - 1] != b[count - 1]


def test_a_text_that_repeats_itself() -> None:
    assert repeats([5, *[1, 2, 3] * 4]) and repeats([7] * 4) and not repeats([1, 2, 3] * 3) and not repeats([])


def answer(name: str = "capital", ids: tuple[int, ...] = (1, 1, 1), step: Step = SURE, **more: Any) -> Answer:
    steps = [step] * len(ids)
    return Answer(name, (9, 8), ids, steps, ids, steps, steps, "text", **more)


def compared(mine: Answer, other: Answer, scored: list[Step] | None = None) -> tuple[str, list[Row]]:
    own = answers.itself({mine.name: mine})
    read = replace(other, scored=other.scored if scored is None else scored)
    rows = answers.against({other.name: other}, {mine.name: mine}, {mine.name: read})
    return verdict(own, rows), [*rows, *own]


OTHER: Step = {2: -0.1, 1: -4.0}
BARE = replace(answer(), steps=(), batched=(), scored=())


@pytest.mark.parametrize(
    ("mine", "word", "alone", "seen"),
    [
        (answer(), answers.SAME, answers.SAME, "1 of 1 are equal"),
        (replace(answer(), text="other"), answers.CLOSE, answers.SAME, "0 of 1 are equal"),
        (replace(answer(), prompt=(9, 9)), answers.DIFFERENT, answers.SAME, "another chat template or tokenizer"),
        (replace(answer(), steps=[OTHER] * 3), answers.BROKEN, answers.BROKEN, "0.0% of 3 first tokens agree"),
        (replace(answer(), batched=[SURE, SURE, OTHER]), answers.DIFFERENT, answers.DIFFERENT, "66.7% of 3"),
        (answer(chat="<|channel|> in 'x'"), answers.BROKEN, answers.BROKEN, "<|channel|> in 'x'"),
        (answer(fault="answered with 500"), answers.BROKEN, answers.BROKEN, "answered with 500"),
        (BARE, answers.UNKNOWN, answers.UNKNOWN, "1 of 1 are equal"),  # the server gives no probabilities
    ],
)
def test_verdicts(mine: Answer, word: str, alone: str, seen: str) -> None:
    """Against a good reference, and without one."""
    found, rows = compared(mine, BARE if mine is BARE else answer())
    assert found == word and verdict(answers.itself({"capital": mine})) == alone
    assert any(seen in row.seen for row in rows)


def test_one_early_difference_does_not_hide_the_rest() -> None:
    """The texts part at once, and the reference's text is read alike: the places behind it count."""
    near: Step = {1: -0.6931, 2: -0.6932}
    mine, other = answer(ids=(2, 5, 5), step=near), answer(ids=(1, 7, 7), step=near)
    word, rows = compared(mine, other)
    assert word == answers.CLOSE and rows[0].figures.places == 3 and rows[1].figures.places == 1


def test_answers_that_repeat_themselves() -> None:
    names = ("a", "b", "c")
    good = {name: answer(name, (1, 2, 3, 4)) for name in names}
    loops = {name: answer(name, (1,) * 8) for name in names}
    rows = answers.against(good, loops, {})
    assert [row.verdict for row in rows if row.name == "repetition"] == [answers.BROKEN]
    assert not [row for row in answers.against(loops, loops, {}) if row.name == "repetition"]


@given(st.lists(STEPS, max_size=3))
def test_a_record_keeps_answers(steps: list[Step]) -> None:
    kept = replace(answer(), scored=[*steps, {1: math.nan}])
    sample = read_json(encode(kept.sample()))
    record = RunRecord(Path("x"), "1", "answers", datetime.now(timezone.utc), {}, {}, "same", {}, [sample])
    (found,) = answers.read(record).values()
    assert list(found.scored[:-1]) == steps and math.isnan(found.scored[-1][1]) and found.ids == list(kept.ids)
    with pytest.raises(UsageError, match="of kind bench and has no answers"):
        answers.read(replace(record, kind="bench", samples=[]))


def test_the_questions() -> None:
    asked = questions()
    assert len({question.name for question in asked}) == len(asked) and 24 <= len(asked) <= 40
    quick = questions(quick=True)
    assert len(quick) == 8 and any(question.chat for question in quick) and any(question.tokens for question in quick)
    assert len(asked[-1].prompt(1 << 20)) > 3 * asked[-1].tokens  # more than enough: a word of it is a token or two
    assert asked[-1].prompt(16).endswith(asked[-1].text) and len(asked[-1].prompt(512)) < 3000
