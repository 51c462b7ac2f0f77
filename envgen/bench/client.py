"""Timed, streamed, parallel requests to an OpenAI-compatible server, for `smoke` and `accept`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from envgen.errors import ServiceError, UsageError
from envgen.serve.chat import context_length
from envgen.serve.events import (
    BrokenOff,
    Completion,
    NoCompletion,
    Part,
    answered,
    document_of,
    error_text,
    read_events,
    short_answer,
)
from envgen.serve.readiness import models, names_of
from envgen.text import reason_of, shorten

if TYPE_CHECKING:
    import aiohttp

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
UNANSWERED = ("refused", "closed", "timeout")  # ``Reply.kind`` of requests without an answer
GONE = 5  # this many of them in a row: the server is gone
LARGEST = 64 << 20  # bytes of a reply
LOOK_EVERY = 1.0  # seconds between two checks that the server's program still runs
_TEXT = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work night point home water room mother area money story "
    "fact month lot right study book eye job word business issue side kind head house service friend father power hour"
)
WORDS = _TEXT.split()


@dataclass
class Reply:
    """A request and its reply; times in seconds (monotonic). ``fault``: what is wrong; ``kind``: the same as a word."""

    began: float = 0.0
    ended: float = 0.0
    status: int = 0
    kind: str = ""
    fault: str = ""
    answer: Completion = field(default_factory=Completion)

    @property
    def ttft(self) -> float | None:
        """Seconds to the first generated text."""
        return None if self.answer.first is None else self.answer.first - self.began

    @property
    def latency(self) -> float:
        """Seconds to the last byte."""
        return self.ended - self.began

    def sample(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The sample for a record."""
        sample: dict[str, Any] = {"unit": "request", **asked, "status": self.status, "latency_ms": self.latency * 1000}
        if self.fault:
            return {**sample, "error": self.fault, "error_kind": self.kind}
        seen = {"ttft_ms": self.ttft and self.ttft * 1000, "prompt_tokens_seen": self.answer.prompt_tokens,
                "output_tokens_seen": self.answer.output_tokens}  # fmt: skip
        return sample | {name: value for name, value in seen.items() if value is not None}


@dataclass(frozen=True)
class BenchTarget:
    """A server. ``root``: the model's folder or name; ``max_len``: its context in tokens (None: unknown).

    ``names``: those that its answers may have as the model's; empty: any.
    """

    url: str
    model: str
    root: str = ""
    max_len: int | None = None
    key: str = field(default="", repr=False)
    silence: float = 300.0
    names: frozenset[str] = frozenset()

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    def body(self, prompt: str | list[int], tokens: int, **more: Any) -> dict[str, Any]:
        """A completion request for exactly ``tokens`` tokens."""
        return {**self._body(tokens), "prompt": prompt, "ignore_eos": True, **more}

    def chat(self, prompt: str, tokens: int) -> dict[str, Any]:
        """A chat request for at most ``tokens`` tokens."""
        return {**self._body(tokens), "messages": [{"role": "user", "content": prompt}]}

    def _body(self, tokens: int) -> dict[str, Any]:
        return {"model": self.model, "max_tokens": tokens, "temperature": 0, "stream": True,
                "stream_options": {"include_usage": True}}  # fmt: skip


@dataclass
class Replies:
    """The replies to several requests. ``gone``: the server stopped answering, and the rest was not sent."""

    replies: list[Reply]
    seconds: float
    gone: bool = False

    @property
    def faults(self) -> str:
        """The faults in one line: each kind with its count and first fault; "": none."""
        bad = [reply for reply in self.replies if reply.fault]
        first = {reply.kind: reply.fault for reply in reversed(bad)}
        return "; ".join(f"{n}x {first[kind]}" for kind, n in Counter(reply.kind for reply in bad).most_common())


def send(
    target: BenchTarget, bodies: Sequence[Mapping[str, Any]], *, concurrency: int = 1,
    on_reply: Callable[[Reply], None] = lambda _: None, alive: Callable[[], bool] | None = None,
) -> Replies:  # fmt: skip
    """Send requests, ``concurrency`` at a time. ``alive`` is called every second: connections to a killed container may
    just stay silent."""
    global aiohttp  # slow to import, and only installed with the extra
    import aiohttp

    return asyncio.run(_send(target, bodies, concurrency, on_reply, alive))


async def _send(
    target: BenchTarget, bodies: Sequence[Mapping[str, Any]], concurrency: int, on_reply: Callable[[Reply], None],
    alive: Callable[[], bool] | None,
) -> Replies:  # fmt: skip
    replies: list[Reply] = []
    began, rest, unanswered = time.monotonic(), iter(bodies), 0

    async def client(session: aiohttp.ClientSession) -> None:
        nonlocal unanswered
        while unanswered < GONE and (body := next(rest, None)):
            reply = await _ask(session, target, body)
            replies.append(reply)
            on_reply(reply)
            unanswered = unanswered + 1 if reply.kind in UNANSWERED else 0

    async def watch() -> None:
        while not alive or await asyncio.to_thread(alive):
            await asyncio.sleep(LOOK_EVERY)

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=min(target.silence, 30), sock_read=target.silence)
    # A new connection for each request: a server may close an idle one just when it is reused.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector, headers=target.headers) as session:
        work: asyncio.Future[Any] = asyncio.gather(*(client(session) for _ in range(min(concurrency, len(bodies)))))
        guard = asyncio.create_task(watch())
        try:
            await asyncio.wait({work, guard}, return_when=asyncio.FIRST_COMPLETED)
            gone = guard.done() or unanswered >= GONE
        finally:
            work.cancel()
            guard.cancel()
            results = await asyncio.gather(work, guard, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):  # from on_reply: the record can't be written
            raise result
    return Replies(replies, time.monotonic() - began, gone)


async def _ask(session: aiohttp.ClientSession, target: BenchTarget, body: Mapping[str, Any]) -> Reply:
    reply, parts, size = Reply(began=time.monotonic()), list[Part](), 0
    url = target.url + (CHAT if "messages" in body else COMPLETIONS)
    try:
        async with session.post(url, json=body, allow_redirects=False) as response:
            reply.status = response.status
            async for chunk in response.content.iter_any():
                parts.append((time.monotonic(), chunk))
                size += len(chunk)
                if size > LARGEST:
                    break
    except (aiohttp.ServerTimeoutError, asyncio.TimeoutError):
        what = f"nothing after {size} bytes" if reply.status else "no answer"
        reply.kind, reply.fault = "timeout", f"{what} within {target.silence:g} s"
    except aiohttp.ClientConnectorError as error:
        # Not asyncio's message, which repeats the address.
        reason = os.strerror(error.errno) if error.errno else reason_of(error.os_error)
        reply.kind, reply.fault = "refused", f"no connection to {error.host}:{error.port}: {reason}"
    except (aiohttp.ClientError, OSError) as error:
        reply.kind, where = "cut", f"in the middle of a reply ({size} bytes)"
        if not reply.status:
            reply.kind, where = "closed", f"without an answer ({shorten(reason_of(error), 100)})"
        reply.fault = f"the server closed the connection {where}"
    reply.ended = parts[-1][0] if parts else time.monotonic()
    if not reply.fault:
        read(reply, parts)
    return reply


def read(reply: Reply, parts: Sequence[Part]) -> None:
    """Parse a complete reply into its answer and fault. Never raises for what the server sent."""
    whole = b"".join(part for _, part in parts)
    if reply.status != 200:
        reply.kind, reply.fault = "status", f"answered with {reply.status}: {error_text(document_of(whole))}"
        return
    try:
        reply.answer = read_events(parts, LARGEST)
        if reply.answer.first is None and not reply.answer.output_tokens:
            reply.fault = "the reply has no generated text"
    except BrokenOff as error:
        reply.fault = str(error)
    except NoCompletion as error:
        reply.fault = f"an event is not part of a completion: {error}"
    if reply.fault and b"data:" not in whole:
        start = whole[:2000].decode(errors="replace").strip()
        reply.fault = f"the reply is not an event stream: {shorten(start, 160) or '(empty)'}"
    reply.kind = "garbage" if reply.fault else ""


# --- the server -------------------------------------------------------------------------------------------------------


def find(url: str, *, model: str | None, key: str, silence: float, expected: str | None = None) -> BenchTarget:
    """The server at ``url`` and its model: ``model``, which the user names, or ``expected``, which the profile names.

    ServiceError if it is not an OpenAI-compatible server or serves another model than the profile says, UsageError if
    it doesn't have ``model``.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or any(c in url for c in " \r\n\t"):
        raise UsageError(f"{url!r} is not the address of a server", hint="it looks like http://127.0.0.1:8000")
    if any(not 33 <= ord(c) <= 126 for c in key):
        raise UsageError("the API key has a character that is invalid in an HTTP header")
    target = BenchTarget(url.rstrip("/"), model or "", key=key, silence=silence)
    try:
        answer = short_answer("GET", f"{target.url}/v1/models", target.headers, min(silence, 30))
    except OSError as error:
        hint = "`envgen up serve` starts a service and waits for it"
        raise ServiceError(f"{target.url} is not ready: {error}", hint=hint) from None
    listed = listed_models(target.url, *answer)
    names = ", ".join(list(listed)[:8])
    if model is not None and model not in listed:
        hint = f"choose one: --model {next(iter(listed), 'NAME')}"
        raise UsageError(f"{target.url} has no model {model!r}; it has: {names or '(none)'}", hint=hint)
    if model is None and expected is not None and expected not in listed:
        hint = f"`envgen up` names what differs; to measure it as it is: --model {next(iter(listed), 'NAME')}"
        raise ServiceError(f"{target.url} serves {names or 'no model'}, not {expected}, as the profile says", hint=hint)
    model = model or expected
    if model is None and len(listed) != 1:
        what = f"has {len(listed)} models: {names}" if listed else "lists no model"
        raise UsageError(f"{target.url} {what}", hint="choose one with --model NAME")
    name = model or next(iter(listed))
    root, length = str(listed[name].get("root") or ""), context_length(listed[name])
    return BenchTarget(target.url, name, root, length, key, silence, names_of(listed, name))


_DRAFTS = re.compile(
    r"^vllm:spec_decode_num_(drafts|draft_tokens|accepted_tokens)_total(?:\{.*\})? (\S+)$", re.MULTILINE | re.ASCII
)


def draft_counts(target: BenchTarget) -> dict[str, float]:
    """vLLM's counters of speculative decoding; empty if the server has none."""
    try:
        status, body = answered("GET", f"{target.url}/metrics", target.headers, min(target.silence, 10))
    except OSError:
        return {}
    return parse_draft_counts(body.decode("utf-8", "replace")) if status == 200 else {}


def parse_draft_counts(text: str) -> dict[str, float]:
    """The counters in Prometheus' text format, summed over the server's engines."""
    found: dict[str, float] = {}
    for name, value in _DRAFTS.findall(text):
        with contextlib.suppress(ValueError):
            found[name] = found.get(name, 0.0) + float(value)
    return found


def draft_rates(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """The accepted drafts in percent, and tokens per step (one more than accepted), between two readings."""
    drafts, tokens, accepted = (
        after.get(name, 0.0) - before.get(name, 0.0) for name in ("drafts", "draft_tokens", "accepted_tokens")
    )
    if not (drafts > 0 and tokens > 0 and accepted >= 0):  # none, or the server was restarted
        return {}
    return {"drafts_accepted": 100 * accepted / tokens, "tokens_per_step": 1 + accepted / drafts}


def listed_models(url: str, status: int, document: Any) -> dict[str, Mapping[str, Any]]:
    """The rows of /v1/models, by name. ServiceError if that is not a list of models."""
    if status in (401, 403):
        raise UsageError(f"{url} needs an API key", hint="export it, and name the variable: --api-key-env NAME")
    rows = models(document) if status == 200 else None
    if rows is not None:
        return rows
    start = shorten(document if isinstance(document, str) else json.dumps(document), 80)
    raise ServiceError(f"{url} is not an OpenAI-compatible server: /v1/models answers {status}: {start or '(nothing)'}",
                       hint="use the server's address without /v1")  # fmt: skip


def tokens(count: int) -> list[int]:
    """A random prompt of ``count`` tokens, so that no prefix cache has it.

    In current vocabularies these ids are single bytes, after a few special tokens.
    """
    return random.choices(range(20, 200), k=count)
