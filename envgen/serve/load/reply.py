"""What a streamed reply says: server-sent events of OpenAI's completions and chat, from bytes and their arrival times.

Reading happens after the reply is complete, so that it never stands between two streams that are being timed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from envgen.serve.events import END, NoCompletion, Part, chosen_logprobs, stamped
from envgen.text import shorten


@dataclass
class Reply:
    """One reply. ``pieces_at``: when each piece of text came. Counts are the server's own; None: it told none.

    ``fault`` is one sentence on what is wrong with it, empty when nothing is.
    """

    text: str = ""
    pieces_at: list[float] = field(default_factory=list)
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    finish: str = ""
    logprobs: int = 0  # how many log probabilities it held
    not_finite: int = 0  # how many of them were NaN or infinite
    done: bool = False
    fault: str = ""


def read_stream(parts: Iterable[Part]) -> Reply:
    """Read a whole reply of status 200. Never raises for what the server wrote."""
    reply = Reply()
    seen = 0
    try:
        for at, data in stamped(parts):
            seen += 1
            if data == END:
                reply.done = True
                break
            try:
                document = json.loads(data)
            except (ValueError, RecursionError):
                reply.fault = f"an event is no JSON: {shown(data)}"
                return reply
            if not _take(reply, document, at):
                return reply
    except NoCompletion as error:
        reply.fault = f"the reply is no event stream: {error}"
        return reply
    if not seen:
        start = b"".join(part for _, part in parts)[:200].decode(errors="replace")
        reply.fault = f"the reply is no event stream: {shown(start)}" if start.strip() else "the reply is empty"
    elif not reply.done and not reply.finish:
        reply.fault = f"the stream ended after {seen} events, without a finish reason and without [DONE]"
    elif not reply.pieces_at and not reply.output_tokens:
        reply.fault = "the reply holds no generated text"
    return reply


def _take(reply: Reply, document: Any, at: float) -> bool:
    """Take in one event; False when it shows that the reply is no good."""
    if not isinstance(document, dict):
        reply.fault = f"an event is no object: {shown(json.dumps(document))}"
        return False
    if document.get("error"):
        reply.fault = f"the server reports an error in the stream: {error_text(document)}"
        return False
    _usage(reply, document.get("usage"))
    choices = document.get("choices")
    if choices is None and "usage" not in document:
        reply.fault = f"an event is no completion: {shown(json.dumps(document))}"
        return False
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict):
            _choice(reply, choice, at)
    return True


def _choice(reply: Reply, choice: dict[str, Any], at: float) -> None:
    ended = choice.get("finish_reason")
    if isinstance(ended, str):
        reply.finish = ended
    piece, is_piece = _piece(choice)
    if is_piece:
        reply.text += piece
        # An empty piece is a token whose characters are not complete yet; an empty one that ends the text is none.
        if piece or not ended:
            reply.pieces_at.append(at)
    for value in chosen_logprobs(choice.get("logprobs")):
        reply.logprobs += 1
        reply.not_finite += not math.isfinite(value)


def _piece(choice: dict[str, Any]) -> tuple[str, bool]:
    """The generated text of a choice, and whether there is any (a chat's first event often names the role alone)."""
    if isinstance(choice.get("text"), str):
        return choice["text"], True
    delta = choice.get("delta") or choice.get("message")
    if not isinstance(delta, dict):
        return "", False
    texts = [delta[key] for key in ("reasoning_content", "reasoning", "content") if isinstance(delta.get(key), str)]
    text = "".join(texts)
    called = bool(delta.get("tool_calls"))
    return text, bool(text) or called or (bool(texts) and "role" not in delta)


def _usage(reply: Reply, usage: Any) -> None:
    if not isinstance(usage, dict):
        return
    reply.prompt_tokens = _count(usage.get("prompt_tokens"), reply.prompt_tokens)
    reply.output_tokens = _count(usage.get("completion_tokens"), reply.output_tokens)
    details = usage.get("prompt_tokens_details")
    if isinstance(details, dict):
        reply.cached_tokens = _count(details.get("cached_tokens"), reply.cached_tokens)


def _count(value: Any, before: int | None) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else before


def error_text(document: Any) -> str:
    """The sentence in an error document, in any of the forms that servers use."""
    found = document
    for key in ("error", "detail", "message"):
        if isinstance(found, dict) and key in found:
            found = found[key]
    return shown(found if isinstance(found, str) else json.dumps(found))


def shown(text: str, limit: int = 160) -> str:
    """One line of it, without what could drive a terminal."""
    return shorten(text.strip(), limit)
