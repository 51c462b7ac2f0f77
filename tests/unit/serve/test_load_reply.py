"""Streamed replies, read from bytes: however they were cut, and whatever the server wrote."""

from __future__ import annotations

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.serve.events import chosen_logprobs, read_events, stamped
from envgen.serve.load.reply import error_text, read_stream, shown
from envgen.serve.readiness import judge_completion
from envgen.text import visible

COMPLETION = (
    b'data: {"choices":[{"text":" Par","finish_reason":null}]}\n\n'
    b'data: {"choices":[{"text":"is","finish_reason":"length"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":2,'
    b'"prompt_tokens_details":{"cached_tokens":1}}}\n\n'
    b"data: [DONE]\n\n"
)
CHAT = (
    b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    b'data: {"choices":[{"delta":{"reasoning_content":"hm"}}]}\n\n'
    b'data: {"choices":[{"delta":{"content":"Paris"},"finish_reason":null}]}\n\n'
    b'data: {"choices":[{"delta":{"content":""},"finish_reason":"stop"}]}\n\n'
    b"data: [DONE]\n\n"
)


def cut(data: bytes, places: list[int]) -> list[tuple[float, bytes]]:
    edges = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [(float(i), data[a:b]) for i, (a, b) in enumerate(itertools.pairwise(edges))]


def test_a_completion_with_the_servers_own_counts() -> None:
    reply = read_stream([(1.0, COMPLETION[:60]), (2.5, COMPLETION[60:])])
    assert (reply.text, reply.finish, reply.done, reply.fault) == (" Paris", "length", True, "")
    assert (reply.prompt_tokens, reply.output_tokens, reply.cached_tokens) == (4, 2, 1)
    assert reply.pieces_at == [1.0, 2.5]


def test_in_a_chat_the_role_alone_is_no_token() -> None:
    reply = read_stream([(float(i), event + b"\n\n") for i, event in enumerate(CHAT.split(b"\n\n")[:-1])])
    assert reply.text == "hmParis" and reply.pieces_at == [1.0, 2.0]
    assert reply.output_tokens is None and reply.finish == "stop" and not reply.fault


@given(st.lists(st.integers(0, 10_000), max_size=30), st.sampled_from([COMPLETION, CHAT]), st.booleans())
def test_it_does_not_matter_how_the_bytes_were_cut(places: list[int], data: bytes, crlf: bool) -> None:
    whole = read_stream([(0.0, data)])
    found = read_stream(cut(data.replace(b"\n", b"\r\n") if crlf else data, places))
    assert (found.text, found.finish, found.output_tokens, found.fault) == (
        whole.text, whole.finish, whole.output_tokens, "",
    )  # fmt: skip
    assert len(found.pieces_at) == 2 and found.pieces_at == sorted(found.pieces_at)


@given(st.lists(st.binary(max_size=80), max_size=8))
def test_whatever_comes_it_never_raises(parts: list[bytes]) -> None:
    reply = read_stream([(0.0, part) for part in parts])
    assert reply.fault  # bytes by chance are no completion
    assert visible(reply.fault) == reply.fault


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["choices", "text", "delta", "usage", "error", "logprobs", "token_logprobs", "content",
                         "prompt_tokens", "completion_tokens", "finish_reason", "logprob"]), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(json_values)
def test_whatever_json_comes_it_never_raises(document: object) -> None:
    read_stream([(0.0, b"data: " + json.dumps(document).encode() + b"\n\ndata: [DONE]\n\n")])


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "the reply is empty"),
        (b"<html>Bad gateway</html>", "the reply is no event stream: <html>Bad gateway</html>"),
        (b'{"choices":[{"text":"x"}]}', "the reply is no event stream"),
        (b"data: {half\n\n", "an event is no JSON: {half"),
        (b"data: 7\n\n", "an event is no object: 7"),
        (b'data: {"hello": 1}\n\n', "an event is no completion"),
        (b'data: {"error": {"message": "CUDA error", "code": 500}}\n\n', "an error in the stream: CUDA error"),
        (COMPLETION[:70], "the stream ended after 1 events, without a finish reason and without [DONE]"),
        (b"data: [DONE]\n\n", "the reply holds no generated text"),
    ],
)
def test_each_fault_is_one_sentence(data: bytes, sentence: str) -> None:
    fault = read_stream([(0.0, data)]).fault
    assert sentence in fault and "\n" not in fault


def test_half_an_event_at_the_end_is_left_out() -> None:
    assert [data for _, data in stamped([(0.0, b"data: a\n\ndata: b")])] == ["a"]
    assert [data for _, data in stamped([(0.0, b": ping\n\nevent: x\ndata:a\ndata: b\n\n")])] == ["a\nb"]


def test_log_probabilities_that_are_no_numbers() -> None:
    """As vLLM sends them: null is NaN, -9999.0 is minus infinity."""
    text = (
        b'data: {"choices":[{"text":"x","logprobs":{"token_logprobs":[-0.5,NaN,-Infinity,null,-9999.0]}}]}\n\n'
        b"data: [DONE]\n\n"
    )
    reply = read_stream([(0.0, text)])
    assert (reply.logprobs, reply.not_finite, reply.fault) == (5, 4, "")
    answer = judge_completion(read_events([text]))
    assert not answer.ready  # `up` and `smoke` agree
    chat = {"content": [{"logprob": -1}, {"logprob": "NaN"}, {"logprob": True}, {}, {"logprob": None}]}
    values = list(chosen_logprobs(chat))
    assert values[0] == -1 and all(map(math.isnan, values[1:])) and len(values) == 4
    assert list(chosen_logprobs({"token_logprobs": [10**400]})) == [math.inf]


def test_errors_in_the_forms_of_several_servers() -> None:
    assert error_text({"error": {"message": "no such model"}}) == "no such model"
    assert error_text({"detail": "bad"}) == "bad"
    assert error_text({"error": "plain"}) == "plain"
    assert "\x1b" not in shown("\x1b[31mred") and len(shown("x" * 999)) < 200
