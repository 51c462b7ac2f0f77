"""What counts as an answer to a chat and to a tool call: null, reasoning alone, markup, calls."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.serve import chat
from envgen.serve.chat import ChatFlags, body, chat_flags, judge_call, judge_chat, refused
from envgen.serve.events import Completion

GPT_OSS = [
    "vllm", "serve", "openai/gpt-oss-120b", "--enable-auto-tool-choice", "--tool-call-parser", "openai",
    "--reasoning_parser=openai_gptoss", "--port", "8000",
]  # fmt: skip
FLAGS = chat_flags(GPT_OSS)
CALL = {0: ("get_weather", '{"city": "Paris"}')}


def test_what_the_flags_promise() -> None:
    assert ChatFlags(False, "openai_gptoss", "openai", True) == FLAGS and FLAGS.for_chats
    assert chat_flags(["vllm", "serve", "m", "--tool-call-parser", "hermes"]).tools == ""  # vLLM takes no calls then
    assert chat_flags(["python3", "-m", "sglang.launch_server", "--tool-call-parser", "qwen"]).tools == "qwen"
    assert (
        chat_flags(["serve", "m", "--chat-template", "/t.jinja"]).for_chats and not chat_flags(["serve", "m"]).for_chats
    )


def test_what_is_asked() -> None:
    asked = body("m", None, FLAGS, tool=True)
    assert asked["reasoning_effort"] == "low" and asked["tools"] and asked["max_tokens"] == chat.TOKENS
    assert "reasoning_effort" not in body("m", None, ChatFlags()) and "tools" not in body("m", None, FLAGS)
    assert body("m", 512, FLAGS)["max_tokens"] == 256 and body("m", 1, FLAGS)["max_tokens"] == 1


@pytest.mark.parametrize(
    ("reply", "good", "words"),
    [
        (Completion("Paris."), True, "'Paris.'"),
        (Completion("Paris.", reasoning="Hm, France."), True, "after 11 characters of reasoning"),
        (Completion(finish="stop"), False, "no content and no reasoning (finish_reason stop)"),
        (Completion(finish="length"), False, "vllm#37030"),
        (Completion(" \n"), False, "no content"),
        (Completion(reasoning="We think", finish="length"), None, "still reasoning"),
        (Completion(reasoning="All of it", finish="stop"), False, "'openai_gptoss' took all of it as reasoning"),
        (Completion("<|channel|>analysis"), False, "<|channel|> in"),
    ],
)
def test_a_chat(reply: Completion, good: bool | None, words: str) -> None:
    found, seen = judge_chat(reply, FLAGS)
    assert found is good and words in seen


@pytest.mark.parametrize(
    ("reply", "good", "words"),
    [
        (Completion(tools=CALL, finish="tool_calls"), True, "get_weather("),
        (Completion("It rains."), None, "the model made none, and answered 'It rains.'"),
        (Completion(finish="stop"), False, "no content"),
        (Completion('<tool_call>{"name": 1}'), False, "'openai' left a call in the text"),
        (Completion("<｜tool▁calls▁begin｜>x"), False, "left a call in the text"),  # noqa: RUF001
        (Completion(tools={0: ("get_weather", "{city")}, finish="tool_calls"), False, "{city"),
        (Completion(tools={0: ("get_weather", '{"ci')}, finish="length"), None, '{"ci'),
        (Completion(tools={0: ("get_wether", '{"city": "Paris"}')}), False, "get_wether"),
        (Completion(reasoning="Which tool?", finish="length"), None, "still reasoning"),
    ],
)
def test_a_tool_call(reply: Completion, good: bool | None, words: str) -> None:
    found, seen = judge_call(reply, FLAGS)
    assert found is good and words in seen


TEMPLATE = "As of transformers v4.44, default chat template is no longer allowed"
LENGTH = "This model's maximum context length is 64 tokens"


@pytest.mark.parametrize(
    ("status", "reason", "promised", "plain"),
    [(400, TEMPLATE, False, None), (404, "Not Found", False, None), (400, LENGTH, None, None),
     (400, "roles must alternate", False, None), (500, "HarmonyError", False, False)],
)  # fmt: skip
def test_a_chat_that_is_refused(status: int, reason: str, promised: bool | None, plain: bool | None) -> None:
    """A failure where the service is set up for chats; else a base model stays one."""
    assert refused(status, reason, FLAGS)[0] is promised and refused(status, reason, ChatFlags())[0] is plain


@pytest.mark.parametrize("status", [404, 405, 501])
def test_a_server_without_chats(status: int) -> None:
    assert refused(status, "x", ChatFlags()) == (None, "the server has no chats")
    assert refused(status, TEMPLATE, ChatFlags())[1] == "the server has no chats"
    assert refused(400, TEMPLATE, ChatFlags()) == (None, "the model has no chat template")


@given(st.text(), st.text(), st.text(), st.dictionaries(st.integers(0, 1), st.tuples(st.text(), st.text())))
def test_whatever_comes_is_judged_in_one_printable_line(text: str, thought: str, finish: str, calls: Any) -> None:
    reply = Completion(text, reasoning=thought, finish=finish, tools=calls)
    for found, seen in (judge_chat(reply, FLAGS), judge_call(reply, FLAGS)):
        assert found in (True, False, None) and not {"\n", "\x1b"} & set(seen)
