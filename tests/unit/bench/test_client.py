"""What a streamed reply says, from bytes: completions and chat, NaN in all its spellings, and whatever else comes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.bench.client import Reply, read

DONE = b"data: [DONE]\n\n"


def reply_of(*events: Any, status: int = 200, end: bytes = DONE) -> Reply:
    found = Reply(status=status)
    parts = [(float(i + 1), b"data: " + json.dumps(one).encode() + b"\n\n") for i, one in enumerate(events)]
    read(found, [*parts, (99.0, end)])
    return found


def text(piece: str, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"text": piece, "finish_reason": finish, **more}]}


def delta(finish: str | None = None, **parts: Any) -> dict[str, Any]:
    return {"choices": [{"delta": parts, "finish_reason": finish}]}


def test_a_completion() -> None:
    found = reply_of(
        text(" Pa"), text("ris", "length"), {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}
    )
    assert (found.text, found.finish, found.prompt_tokens, found.output_tokens) == (" Paris", "length", 5, 2)
    assert found.first == 1.0 and not found.fault


def test_a_chat_with_reasoning_and_a_tool() -> None:
    call = {"index": 0, "function": {"name": "get_weather", "arguments": '{"city":'}}
    rest = {"index": 0, "function": {"arguments": ' "Paris"}'}}
    found = reply_of(
        delta(role="assistant", content=""), delta(reasoning_content="Hm"), delta(reasoning="m"), delta(content="Hi"),
        delta(tool_calls=[call]), delta(tool_calls=[rest]), delta("tool_calls"),
    )  # fmt: skip
    assert (found.text, found.reasoning) == ("Hi", "Hmm") and not found.fault
    assert found.tools == {0: ("get_weather", '{"city": "Paris"}')}
    assert found.first == 2.0  # the role alone is not text


@pytest.mark.parametrize("bad", [None, float("nan"), float("-inf"), -9999.0, "NaN", 10**400])
def test_log_probabilities_that_are_not_finite(bad: Any) -> None:
    completion = reply_of(text("a", logprobs={"token_logprobs": [-0.5, bad]}), text("", "stop"))
    assert (completion.logprobs, completion.not_finite) == (2, 1)
    chat = reply_of(
        {"choices": [{"delta": {"content": "a"}, "logprobs": {"content": [{"logprob": bad}]}}]}, delta("stop")
    )
    assert (chat.logprobs, chat.not_finite) == (1, 1)


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        (reply_of(text("a"), end=b""), "without a finish reason"),
        (reply_of({"error": {"message": "CUDA error"}}), "reports an error in the stream: CUDA error"),
        (reply_of({"hello": 1}), "not part of a completion"),
        (reply_of(text("", "stop")), "holds no generated text"),
        (reply_of(end=b"<html>Bad gateway</html>"), "not an event stream: <html>"),
        (reply_of(end=b""), "not an event stream: (empty)"),
        (reply_of(end=b"data: {half\n\n"), "not part of a completion: {half"),
        (reply_of(end=b'{"error": {"message": "EngineCore died"}}', status=500), "answered with 500: EngineCore died"),
    ],
)
def test_what_is_no_completion(found: Reply, fault: str) -> None:
    assert fault in found.fault and found.kind in ("garbage", "status")


@given(st.lists(st.binary(max_size=60)), st.booleans())
def test_it_never_raises(chunks: list[bytes], stream: bool) -> None:
    head = b"data: " if stream else b""
    read(Reply(status=200), [(float(i), head + chunk) for i, chunk in enumerate(chunks)])


KEYS = st.sampled_from(["choices", "usage", "delta", "text", "logprobs", "content", "tool_calls", "function", "error"])
LEAVES = st.none() | st.integers() | st.text()


@given(st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner)))
def test_whatever_json_it_is(document: Any) -> None:
    reply_of({"choices": document, "usage": document}, document)
