"""Prompts of a wanted length, for tokenizers that differ."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.errors import ServiceError
from envgen.serve.prompts import TOO_LONG, Prompts


def tokenizer(per_word: float, template: int, longest: int, asked: list[int]) -> Prompts:
    """A stand-in for a server: it counts, and refuses what is longer than it can take."""

    def ask(text: str) -> int | None:
        words = text.split()
        asked.append(len(words))
        tokens = template + round(sum(per_word * len(word) / 4.5 for word in words))
        return tokens if tokens <= longest else TOO_LONG

    return Prompts(ask, seed=1)


@given(
    st.floats(0.8, 5), st.integers(0, 40), st.sampled_from([64, 500, 2048, 4096]), st.sampled_from([512, 5000, 100_000])
)
def test_the_length_is_met_and_never_passes_the_limit(
    per_word: float, template: int, wanted: int, longest: int
) -> None:
    asked: list[int] = []
    limit = longest - 12
    prompt, real = tokenizer(per_word, template, longest, asked).of(wanted, limit)
    goal = min(wanted, limit)
    assert real <= limit
    assert abs(real - goal) <= max(3 * per_word + 1, 0.02 * goal)
    assert len(asked) <= 12 and prompt


def test_equal_lengths_are_the_same_words_in_another_order() -> None:
    asked: list[int] = []
    prompts = tokenizer(1.3, 4, 100_000, asked)
    made = [prompts.of(300)[0] for _ in range(20)]
    assert len({text[:40] for text in made}) == 20
    assert len({tuple(sorted(text.split())) for text in made}) == 1
    assert len(asked) < 8  # only the first one is fitted


def test_the_first_word_costs_what_it_cost_when_it_was_counted() -> None:
    """A byte-level tokenizer has no token for a word without the space before it; at the limit, one more is one too
    many."""

    def ask(text: str) -> int:
        first, *others = text.split()
        return len(first) + len(others)

    prompts = Prompts(ask, seed=1)
    for _ in range(20):
        text, real = prompts.of(500, 500)
        assert ask(text) == real <= 500


def test_a_server_that_does_not_count() -> None:
    text, real = Prompts(lambda _: None, 1).of(90)
    assert real == 0 and len(text.split()) == 60


def test_a_server_that_takes_nothing() -> None:
    with pytest.raises(ServiceError, match="no prompt of at most 10 tokens"):
        Prompts(lambda _: TOO_LONG, 1).of(100, 10)
