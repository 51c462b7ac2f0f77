"""One chat and one tool call: the requests, and the judgement of the replies. Used by `up` and
`smoke`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from envgen.binding import JsonDict, JsonObject
from envgen.engine.values import MISSHAPEN, read_json
from envgen.profile.flags import in_words
from envgen.serve.events import LARGEST_COUNT, Completion
from envgen.text import shorten, visible

CHAT = "What is the capital of France?"
TOOL_CALL = "What is the weather in Paris? Use the tool."
CHAT_URL = "/v1/chat/completions"
TOKENS = 1024  # enough for a model that reasons first
TOOL = yaml.safe_load(Path(__file__).with_name("tool.yaml").read_bytes())
# Markup that the server's parser removes from the text: gpt-oss's, and tool calls.
_HARMONY = re.compile(r"<\|(?:start|channel|message|end|return|call|constrain)\|>")
_CALLS = re.compile(
    r"</?tool_call>|<function=|\[TOOL_CALLS\]|<\|python_tag\|>|<\|tool_calls?_(?:section_)?begin\|>|"
    r"<\uff5ctool\u2581calls?\u2581begin\uff5c>|<minimax:tool_call>"  # DeepSeek writes wide bars
)
# How servers refuse a chat: the model has no template, or the request is too long.
_NO_TEMPLATE = re.compile(r"chat[ _]template", re.I)
_TOO_LONG = re.compile(
    r"maximum context length|max_model_len|context (?:size|window)|too (?:long|large)",
    re.IGNORECASE,
)
_ABSENT = (404, 405, 501)

Verdict = tuple["bool | None", str]  # passed (None: not checked), and what was seen


@dataclass(frozen=True)
class ChatFlags:
    """What a server's command sets for chats."""

    template: bool = False
    reasoning: str = ""  # the reasoning parser
    tools: str = ""  # the tool-call parser; "" if tool calls are off
    gpt_oss: bool = False

    @property
    def for_chats(self) -> bool:
        """Whether the command sets up chats: then a refused chat is a failure."""
        return bool(self.template or self.reasoning or self.tools)


def chat_flags(words: Sequence[str]) -> ChatFlags:
    """Read a server's command."""
    line = " ".join(words)
    tools = _text(words, "tool-call-parser")
    is_on = in_words(words, "enable-auto-tool-choice") is not None
    if not is_on and "sglang" not in line:  # SGLang needs no second flag
        tools = ""
    return ChatFlags(
        template=in_words(words, "chat-template") is not None,
        reasoning=_text(words, "reasoning-parser"),
        tools=tools,
        gpt_oss=re.search("gpt-?oss", line, re.I) is not None,
    )


def _text(words: Sequence[str], name: str) -> str:
    value = in_words(words, name)
    return value if isinstance(value, str) else ""


def context_length(entry: JsonObject) -> int | None:
    """A model's context length in tokens, from its row of /v1/models, as vLLM and SGLang give it."""
    length = entry.get("max_model_len")
    return length if isinstance(length, int) and 0 < length < LARGEST_COUNT else None


def body(model: str, context: int | None, flags: ChatFlags, *, tool: bool = False) -> JsonDict:
    """The request: a chat, or with ``tool`` one that asks for a tool call. ``context``: the model's
    context length.
    """
    request = {
        "model": model,
        "messages": [{"role": "user", "content": TOOL_CALL if tool else CHAT}],
        "max_tokens": TOKENS if context is None else max(1, min(TOKENS, context // 2)),
        "temperature": 0,
        "stream": True,
    }
    if tool:
        request["tools"] = [TOOL]
    if flags.gpt_oss:  # other models' templates may not know it
        request["reasoning_effort"] = "low"
    return request


def refused(status: int, reason: str, flags: ChatFlags) -> Verdict:
    """Judge a reply with a status other than 200."""
    answer = f"answered with {status}: {reason}"
    lacks_template = _NO_TEMPLATE.search(reason)
    if _TOO_LONG.search(reason):
        return None, f"not checked, the server's context is too short: {answer}"
    if status in _ABSENT and not flags.for_chats:
        return None, "the server has no chats"
    if lacks_template and not flags.for_chats:
        return None, "the model has no chat template"
    if lacks_template:
        return False, f"{answer}; set the model's template: `args: {{chat-template: FILE}}`"
    failed = flags.for_chats or status >= 500
    return False if failed else None, answer


def judge_chat(reply: Completion, flags: ChatFlags) -> Verdict:
    """Passed: text without raw markup. Reasoning without text is judged by why it stopped."""
    text = reply.text
    thought = reply.reasoning
    if leak := _HARMONY.search(text + thought):
        return False, f"{leak[0]} in {shorten(text or thought, 80)!r}"
    if text.strip():
        after = f", after {len(thought)} characters of reasoning" if thought else ""
        return True, f"{shorten(text, 60)!r}{after}"
    return _empty(reply, flags)


def judge_call(reply: Completion, flags: ChatFlags) -> Verdict:
    """Passed: a call whose JSON has a city. Not checked: an answer without a call."""
    if not reply.tools:
        return _without_call(reply, flags)
    called, arguments = next(iter(reply.tools.values()))
    good: bool | None
    try:
        good = called == "get_weather" and bool(read_json(arguments)["city"])
    except MISSHAPEN:
        good = None if reply.finish == "length" else False  # cut off
    return good, f"{shorten(called, 40)}({shorten(arguments, 60)})"


def _without_call(reply: Completion, flags: ChatFlags) -> Verdict:
    """Judge a reply that has no call."""
    left = _CALLS.search(reply.text) or _HARMONY.search(reply.text + reply.reasoning)
    if left:
        call = f"{left[0]} in {shorten(reply.text, 80)!r}"
        return False, f"{_parser(flags.tools)} left a call in the text: {call}"
    if not reply.text.strip():
        return _empty(reply, flags)
    return None, f"the model made none, and answered {shorten(reply.text, 60)!r}"


def _parser(name: str) -> str:
    return f"the parser {visible(name)!r}" if name else "the server's parser"


def _empty(reply: Completion, flags: ChatFlags) -> Verdict:
    """Judge a reply without content: failed, unless it was cut off while reasoning."""
    finish = f"finish_reason {visible(reply.finish) or 'null'}"
    thought = reply.reasoning
    if thought and reply.finish == "length":
        return None, f"it was still reasoning at its token limit: {shorten(thought, 60)!r}"
    if thought:
        what = f"no content ({finish}): {_parser(flags.reasoning)} took all of it as reasoning"
        return False, f"{what}, {shorten(thought, 60)!r}"
    cause = "the model's first tokens are wrong, or a parser swallows them"
    if flags.gpt_oss:
        known = "with Marlin's MXFP4 kernels on SM121 this is known (docs/serving.md, vllm#37030)"
        cause += f"; {known}"
    return False, f"no content and no reasoning ({finish}): {cause}"
