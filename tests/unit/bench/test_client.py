"""What a streamed reply says, from bytes: completions and chat, NaN in all its spellings, and whatever else comes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.bench import checks
from envgen.bench.client import Reply, read
from envgen.serve.events import Completion

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
    assert found.answer == Completion(
        " Paris", finish="length", first=1.0, prompt_tokens=5, output_tokens=2
    ) and not found.fault  # fmt: skip


def test_a_chat_with_reasoning_and_a_tool() -> None:
    call = {"index": 0, "function": {"name": "get_weather", "arguments": '{"city":'}}
    rest = {"index": 0, "function": {"arguments": ' "Paris"}'}}
    found = reply_of(
        delta(role="assistant", content=""), delta(reasoning_content="Hm"), delta(reasoning="m"), delta(content="Hi"),
        delta(tool_calls=[call]), delta(tool_calls=[rest]), delta("tool_calls"), end=b"",
    )  # fmt: skip
    assert found.answer == Completion(
        "Hi", reasoning="Hmm", tools={0: ("get_weather", '{"city": "Paris"}')}, finish="tool_calls",
        first=2.0,  # the role alone is not text
    ) and not found.fault  # fmt: skip


@pytest.mark.parametrize("bad", [None, float("nan"), float("-inf"), -9999.0, "NaN", 10**400])
def test_log_probabilities_that_are_not_finite(bad: Any) -> None:
    completion = reply_of(text("a", logprobs={"token_logprobs": [-0.5, bad]}), text("", "stop"))
    chat = reply_of(
        {"choices": [{"delta": {"content": "a"}, "logprobs": {"content": [{"logprob": bad}]}}]}, delta("stop")
    )
    assert [checks._finite(one) for one in (completion, chat)] == [
        (False, "1 of 2 are not finite"), (False, "1 of 1 are not finite"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        (reply_of(text("a"), end=b""), "the connection was closed without"),
        (reply_of({"error": {"message": "CUDA error"}}), "the server sent an error: CUDA error"),
        (reply_of({"hello": 1}), "not part of a completion"),
        (reply_of({"choices": [], "usage": {"prompt_tokens": -1}}), "not part of a completion"),
        (reply_of(text("", "stop")), "has no generated text"),
        (reply_of(end=b"<html>Bad gateway</html>"), "not an event stream: <html>"),
        (reply_of(end=b""), "not an event stream: (empty)"),
        (reply_of(end=b"data: {half\n\n"), "not part of a completion: {half"),
        (reply_of(end=b'{"error": {"message": "EngineCore died"}}', status=500), "answered with 500: EngineCore died"),
        (reply_of(end=b"{half", status=500), "answered with 500: {half"),
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


@given(st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner), max_leaves=12))
def test_whatever_json_it_is(document: Any) -> None:
    reply_of({"choices": document, "usage": document}, document)
