"""Streams of a completion (cut anywhere, half an event, garbage), and what counts as an answer."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.serve.events import BrokenOff, Completion, NoCompletion, log_probability, read_events
from envgen.serve.readiness import judge


def event(text: str, *logprobs: Any) -> bytes:
    document = {"choices": [{"text": text, "logprobs": {"token_logprobs": list(logprobs)}}]}
    return f"data: {json.dumps(document)}\n\n".encode()


WHOLE = event(" Par", -0.5) + event("is", -0.25) + b'data: {"choices": [], "usage": {}}\n\n' + b"data: [DONE]\n\n"


@given(st.lists(st.integers(0, len(WHOLE))))
def test_wherever_the_chunks_are_cut(cuts: list[int]) -> None:
    ends = [0, *sorted(cuts), len(WHOLE)]
    completion = read_events(WHOLE[a:b] for a, b in itertools.pairwise(ends))
    assert (completion.text, completion.logprobs) == (" Paris", [-0.5, -0.25])


@given(st.integers(0, len(WHOLE) - len(b"data: [DONE]\n\n")))
def test_a_stream_that_ends_early_is_no_answer(end: int) -> None:
    with pytest.raises(BrokenOff, match="closed without"):
        read_events([WHOLE[:end]])


def test_lines_may_end_as_they_like_and_comments_are_nothing() -> None:
    stream = b": hello\r\nid: 1\r\n" + event("x", -1).replace(b"\n", b"\r\n") + b"data:[DONE]\n"
    assert read_events([stream]).text == "x"


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        (b"data: <html>\n\n", "<html>"),
        (b'data: {"text": "no choices"}\n\n', "no choices"),
        (b'data: {"choices": [{"text": 5}]}\n\n', "5"),
        (b'data: {"choices": [7]}\n\n', "7"),
        (b"data: [1]\n\n", "1"),
        (b"data: null\n\n", "null"),
        (b"x" * (2 << 20), "more than 1 MiB"),
        (b"data: \x1b[31m\n\n", "x1b"),
    ],
)
def test_what_is_no_part_of_a_completion(stream: bytes, words: str) -> None:
    with pytest.raises(NoCompletion) as caught:
        read_events([stream])
    assert words in str(caught.value) and str(caught.value).isprintable()


def test_an_error_in_the_middle_of_a_stream() -> None:
    with pytest.raises(BrokenOff, match=r"after 1 events the server sent .*engine died"):
        read_events([event("a", -1), b'data: {"error": {"message": "engine died"}}\n\n'])


@given(st.lists(st.binary()))
def test_nothing_else_is_ever_raised(chunks: list[bytes]) -> None:
    with pytest.raises((BrokenOff, NoCompletion)):
        read_events([*chunks, b"\n\n"] if b"[DONE]" not in b"".join(chunks) else [])


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "null", "-9999.0", '"x"'])
def test_every_spelling_of_a_logprob_that_is_none(value: str) -> None:
    stream = b'data: {"choices": [{"text": "!", "logprobs": {"token_logprobs": [%s]}}]}\n\n' % value.encode()
    answer = judge(200, read_events([stream, b"data: [DONE]\n\n"]))
    assert not answer.ready and answer.fatal and "NaN or infinite" in answer.why


def test_the_expected_words() -> None:
    assert judge(200, Completion(" Paris.", [-0.1]), "Paris").ready
    answer = judge(200, Completion(" a is the", [-0.1]), "Paris")
    assert answer.fatal and answer.why.endswith("' a is the', which does not contain 'Paris'")
    assert judge(200, Completion(" no logprobs at all")).ready


# What counts as an answer


def completion(text: Any = "Paris", logprobs: Any = None) -> dict[str, Any]:
    return {"choices": [{"text": text, "logprobs": logprobs}]}


def test_a_completion() -> None:
    answer = judge(200, completion(" Paris\n\x1b[31m", {"token_logprobs": [-0.5, 0, -1.0]}))
    assert answer.ready and answer.text == " Paris\\n\\x1b[31m"


@pytest.mark.parametrize(
    ("status", "document", "why", "fatal"),
    [
        (500, {"error": "boom"}, "answered with 500", False),
        (503, "", "answered with 503", False),
        (404, {"message": "no such model"}, "no such model", True),
        (200, completion(""), "empty text", True),
        (200, completion(None), "empty text", True),
        (200, {}, "not a completion", True),
        (200, {"choices": []}, "not a completion", True),
        (200, "<html>", "not a completion", True),
        (200, completion("!!!", {"token_logprobs": [float("nan")]}), "NaN", True),
        (200, completion("!!!", {"token_logprobs": [float("-inf")]}), "infinite", True),
        (200, completion("!!!", {"token_logprobs": [None]}), "infinite log probability (nan)", True),
        (429, "", "answered with 429", False),
    ],
)
def test_what_is_no_answer(status: int, document: Any, why: str, fatal: bool) -> None:
    answer = judge(status, document)
    assert not answer.ready and why in answer.why and answer.fatal is fatal


@pytest.mark.parametrize("value", [True, False, None, [], {}, "x", "nan"])
def test_what_is_no_log_probability(value: Any) -> None:
    assert math.isnan(log_probability(value))


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_both_names_of_a_thought(name: str) -> None:
    assert Completion().add({"choices": [{"delta": {name: "Hm."}}]}).reasoning == "Hm."
