"""One chat and one tool call, as a user asks: what is sent, and what the answer must be. `up` and `smoke` share it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from envgen.engine.values import MISSHAPEN, read_json
from envgen.serve.events import LARGEST_COUNT, Completion
from envgen.text import shorten, visible

CHAT, TOOL_CALL = "What is the capital of France?", "What is the weather in Paris? Use the tool."
CHAT_URL = "/v1/chat/completions"
TOKENS = 1024  # a reasoning model thinks before it speaks
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather", "description": "Get the weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}  # fmt: skip
# Markup that a parser for the model leaves in no text: gpt-oss's, and how models write tool calls.
_HARMONY = re.compile(r"<\|(?:start|channel|message|end|return|call|constrain)\|>")
_CALLS = re.compile(
    r"</?tool_call>|<function=|\[TOOL_CALLS\]|<\|python_tag\|>|<\|tool_calls?_(?:section_)?begin\|>|"
    r"<\uff5ctool\u2581calls?\u2581begin\uff5c>|<minimax:tool_call>"  # DeepSeek writes wide bars
)
# How servers refuse a chat to a model that knows none, or one that is longer than they take.
_NO_TEMPLATE = re.compile(r"chat[ _]template", re.I)
_TOO_LONG = re.compile(
    r"maximum context length|max_model_len|context (?:size|window)|too (?:long|large)", re.IGNORECASE
)
_ABSENT = (404, 405, 501)

Verdict = tuple["bool | None", str]  # None: not checked; and what was seen


@dataclass(frozen=True)
class Talk:
    """What a server's command sets for chats."""

    template: bool = False
    reasoning: str = ""  # its reasoning parser
    tools: str = ""  # its parser of tool calls, where it takes them
    gpt_oss: bool = False

    @property
    def promised(self) -> bool:
        """Is the service set up for chats? Then one that is refused is a failure."""
        return bool(self.template or self.reasoning or self.tools)


def talk_of(words: Sequence[str]) -> Talk:
    """Read vLLM's flags, as ``--a b`` and ``--a=b``, with either dash."""
    given = dict[str, str]()
    for word, following in pairwise([*words, ""]):
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            given[name[2:].replace("_", "-")] = value if equals else "" if following.startswith("--") else following
    # SGLang needs no second flag.
    takes_calls = "enable-auto-tool-choice" in given or any("sglang" in word for word in words)
    tools = given.get("tool-call-parser", "") if takes_calls else ""
    gpt_oss = any("gpt-oss" in word.lower() or "gptoss" in word.lower() for word in words)
    return Talk("chat-template" in given, given.get("reasoning-parser", ""), tools, gpt_oss)


def tokens_of(limit: int | None) -> int:
    """How long an answer may get at a server with a context of ``limit`` tokens."""
    return TOKENS if limit is None else max(1, min(TOKENS, limit // 2))


def limit_of(entry: Mapping[str, Any]) -> int | None:
    """A model's context length in tokens, from its row of /v1/models: vLLM and SGLang give max_model_len, llama.cpp
    what it was trained for."""
    meta = entry.get("meta")
    for value in (entry.get("max_model_len"), meta.get("n_ctx_train") if isinstance(meta, dict) else None):
        if isinstance(value, int) and 0 < value < LARGEST_COUNT:
            return value
    return None


def body(model: str, limit: int | None, talk: Talk, *, tool: bool = False) -> dict[str, Any]:
    """The request: a chat, or with ``tool`` one that asks for a call."""
    return {
        "model": model, "messages": [{"role": "user", "content": TOOL_CALL if tool else CHAT}],
        "max_tokens": tokens_of(limit), "temperature": 0, "stream": True,
        **({"tools": [TOOL]} if tool else {}),
        # Other models' templates need not know an effort.
        **({"reasoning_effort": "low"} if talk.gpt_oss else {}),
    }  # fmt: skip


def refused(status: int, reason: str, talk: Talk) -> Verdict:
    """A chat that was answered with another status than 200."""
    seen = f"answered with {status}: {reason}"
    if _TOO_LONG.search(reason):
        return None, f"not checked, the server's context is too short: {seen}"
    if (_NO_TEMPLATE.search(reason) or status in _ABSENT) and not talk.promised:
        return None, "the model has no chat template" if status not in _ABSENT else "the server has no chats"
    if _NO_TEMPLATE.search(reason):
        return False, f"{seen}; give the model's template: `args: {{chat-template: FILE}}`"
    return (False if talk.promised or status >= 500 else None), seen


def judge_chat(reply: Completion, talk: Talk) -> Verdict:
    """A text without raw markup. One that only thought is judged by why it stopped."""
    text, thought = reply.text, reply.reasoning
    if leak := _HARMONY.search(text + thought):
        return False, f"{leak[0]} in {shorten(text or thought, 80)!r}"
    if text.strip():
        after = f", after {len(thought)} characters of reasoning" if thought else ""
        return True, f"{shorten(text, 60)!r}{after}"
    return _empty(reply, talk)


def judge_call(reply: Completion, talk: Talk) -> Verdict:
    """A call with JSON that names a city; a model may answer without one."""
    if not reply.tools:
        if leak := (_CALLS.search(reply.text) or _HARMONY.search(reply.text + reply.reasoning)):
            parser = f"the parser {visible(talk.tools)!r}" if talk.tools else "the server's parser"
            return False, f"{parser} left a call in the text: {leak[0]} in {shorten(reply.text, 80)!r}"
        return (
            (None, f"answered without a call: {shorten(reply.text, 60)!r}")
            if reply.text.strip()
            else _empty(reply, talk)
        )
    called, arguments = next(iter(reply.tools.values()))
    good: bool | None = False
    try:
        good = called == "get_weather" and bool(read_json(arguments)["city"])
    except MISSHAPEN:
        good = None if reply.finish == "length" else False  # cut off
    return good, f"{shorten(called, 40)}({shorten(arguments, 60)})"


def _empty(reply: Completion, talk: Talk) -> Verdict:
    """Content null or "": broken, unless the model was cut off while it thought."""
    finish = f"finish_reason {visible(reply.finish) or 'null'}"
    if reply.reasoning and reply.finish == "length":
        return None, f"it was still reasoning when its tokens were used up: {shorten(reply.reasoning, 60)!r}"
    if reply.reasoning:
        parser = f"the parser {visible(talk.reasoning)!r}" if talk.reasoning else "the server's parser"
        what = f"no content ({finish}): {parser} took all of it as reasoning"
        return False, f"{what}, {shorten(reply.reasoning, 60)!r}"
    cause = "the model's first tokens are wrong, or a parser swallows them"
    if talk.gpt_oss:
        cause += "; with Marlin's MXFP4 kernels on SM121 this is known (docs/serving.md, vllm#37030)"
    return False, f"no content and no reasoning ({finish}): {cause}"
