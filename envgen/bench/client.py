"""Streamed requests to an OpenAI-compatible server: completions and chat, several at a time, each timed.

For smoke and stress only; throughput is measured by llama-benchy and ``vllm bench serve`` (tools.py).
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from envgen.engine.base import MISSHAPEN, read_json
from envgen.errors import ServiceError, UsageError
from envgen.serve.events import END, NoCompletion, Part, chosen_logprobs, short_answer, stamped
from envgen.text import reason_of, shorten

if TYPE_CHECKING:
    import aiohttp

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
LOST = ("refused", "closed", "timeout")  # kinds of requests without an answer
GONE = 5  # of them in a row, and the server is gone
LARGEST = 64 << 20  # bytes of one reply
LARGEST_COUNT = 1 << 53  # of tokens: what is larger would not fit a float
LOOK_EVERY = 1.0  # seconds between two looks whether the server's program is still there
_TEXT = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work night point home water room mother area money story "
    "fact month lot right study book eye job word business issue side kind head house service friend father power hour"
)
WORDS = _TEXT.split()


@dataclass
class Reply:
    """One request and what came of it; times are seconds (monotonic). ``fault`` says what is wrong, ``kind`` in a word.

    Counts are the server's own; None: it gave none.
    """

    began: float = 0.0
    ended: float = 0.0
    status: int = 0
    kind: str = ""
    fault: str = ""
    text: str = ""
    reasoning: str = ""
    tools: dict[int, tuple[str, str]] = field(default_factory=dict)  # index -> name, arguments
    first: float | None = None  # when the first generated text came
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    finish: str = ""
    logprobs: int = 0
    not_finite: int = 0

    @property
    def ttft(self) -> float | None:
        """Seconds to the first generated text."""
        return None if self.first is None else self.first - self.began

    @property
    def latency(self) -> float:
        """Seconds to its last byte."""
        return self.ended - self.began

    def sample(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """As a record has it."""
        found: dict[str, Any] = {"unit": "request", **asked, "status": self.status, "latency_ms": self.latency * 1000}
        if self.fault:
            return {**found, "error": self.fault, "error_kind": self.kind}
        seen = {"ttft_ms": self.ttft and self.ttft * 1000, "prompt_tokens_seen": self.prompt_tokens,
                "output_tokens_seen": self.output_tokens}  # fmt: skip
        return found | {name: value for name, value in seen.items() if value is not None}


@dataclass(frozen=True)
class Target:
    """A server that answered. ``max_len``: tokens of prompt and reply together; None: it doesn't say."""

    url: str
    model: str
    root: str = ""  # where the server has the model from: a folder or a name
    max_len: int | None = None
    api: str = COMPLETIONS
    exact: bool = True  # it takes ignore_eos, so a reply is as long as was asked
    key: str = field(default="", repr=False)
    silence: float = 300.0
    notes: tuple[str, ...] = ()

    @property
    def headers(self) -> dict[str, str]:
        """What each request carries."""
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    def body(self, prompt: str, tokens: int, *, logprobs: bool = False) -> dict[str, Any]:
        """A completion of ``prompt``, in the dialect that the server speaks."""
        chat = self.api == CHAT
        body = self.chat(prompt, tokens)
        if not chat:
            del body["messages"]
            body["prompt"] = prompt
        more = {"logprobs": (True if chat else 1) if logprobs else None, "ignore_eos": self.exact or None}
        return body | {name: value for name, value in more.items() if value}

    def chat(self, prompt: str, tokens: int, **more: Any) -> dict[str, Any]:
        """A chat completion, as users ask."""
        return {
            "model": self.model, "max_tokens": tokens, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}, "messages": [{"role": "user", "content": prompt}], **more,
        }  # fmt: skip


@dataclass
class Load:
    """What came of several requests, in their order. ``gone``: the server went away, the rest was not sent."""

    replies: list[Reply]
    seconds: float
    gone: bool = False

    @property
    def faults(self) -> str:
        """What went wrong, in one line: each kind with its number and first sentence; empty when nothing did."""
        bad = [one for one in self.replies if one.fault]
        first = {one.kind: one.fault for one in reversed(bad)}
        return "; ".join(f"{n}x {first[kind]}" for kind, n in Counter(one.kind for one in bad).most_common())


def send(
    target: Target, bodies: Sequence[Mapping[str, Any]], *, concurrency: int = 1,
    on_reply: Callable[[Reply], None] = lambda _: None, alive: Callable[[], bool] | None = None,
) -> Load:  # fmt: skip
    """Send all of them, ``concurrency`` at a time.

    ``alive`` is asked every second (in a thread): the connections of a killed container may stay silent.
    """
    global aiohttp  # heavy, and there only with the extra, so that it is imported here alone
    import aiohttp

    return asyncio.run(_send(target, bodies, concurrency, on_reply, alive))


async def _send(
    target: Target, bodies: Sequence[Mapping[str, Any]], concurrency: int, on_reply: Callable[[Reply], None],
    alive: Callable[[], bool] | None,
) -> Load:  # fmt: skip
    replies: list[Reply] = []
    began, rest, lost = time.monotonic(), iter(bodies), 0

    async def client(session: aiohttp.ClientSession) -> None:
        nonlocal lost
        while lost < GONE and (body := next(rest, None)):
            reply = await _ask(session, target, body)
            replies.append(reply)
            on_reply(reply)
            lost = lost + 1 if reply.kind in LOST else 0

    async def watch() -> None:
        while not alive or await asyncio.to_thread(alive):
            await asyncio.sleep(LOOK_EVERY)

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=min(target.silence, 30), sock_read=target.silence)
    # A connection for each request: a server may close an idle one at the moment that it is used again.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector, headers=target.headers) as session:
        work: asyncio.Future[Any] = asyncio.gather(*(client(session) for _ in range(min(concurrency, len(bodies)))))
        guard = asyncio.create_task(watch())
        try:
            await asyncio.wait({work, guard}, return_when=asyncio.FIRST_COMPLETED)
            gone = guard.done() or lost >= GONE
        finally:
            work.cancel()
            guard.cancel()
            results = await asyncio.gather(work, guard, return_exceptions=True)
    for found in results:
        if isinstance(found, Exception):  # from on_reply: the record can't be written
            raise found
    return Load(replies, time.monotonic() - began, gone)


async def _ask(session: aiohttp.ClientSession, target: Target, body: Mapping[str, Any]) -> Reply:
    reply, parts, size = Reply(began=time.monotonic()), list[Part](), 0
    url = target.url + (CHAT if "messages" in body else COMPLETIONS)
    try:
        async with session.post(url, json=body, allow_redirects=False) as response:
            reply.status = response.status
            async for chunk in response.content.iter_any():
                parts.append((time.monotonic(), chunk))
                size += len(chunk)
                if size > LARGEST:
                    reply.kind, reply.fault = "garbage", f"the reply has more than {LARGEST >> 20} MiB"
                    break
    except (aiohttp.ServerTimeoutError, asyncio.TimeoutError):
        what = f"after {size} bytes nothing more" if reply.status else "no answer"
        reply.kind, reply.fault = "timeout", f"{what} within {target.silence:g} s"
    except aiohttp.ClientConnectorError as error:
        # asyncio's own words name the address once more.
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
    """Take in a whole reply: its text, tokens and faults. Never raises for what the server wrote."""
    start = b"".join(part for _, part in parts)[:2000].decode(errors="replace")
    if reply.status != 200:
        reply.kind, reply.fault = "status", f"answered with {reply.status}: {error_text(start)}"
        return
    seen, done = 0, False
    try:
        for at, data in stamped(parts):
            if done := data == END:
                break
            seen += 1
            try:
                _event(reply, read_json(data), at)
            except MISSHAPEN:
                raise NoCompletion(f"an event is not part of a completion: {shorten(data, 160)}") from None
        if not seen:
            raise NoCompletion(f"the reply is not an event stream: {shorten(start.strip(), 160) or '(empty)'}")
        if not done and not reply.finish:
            raise NoCompletion(f"the stream ended after {seen} events, without a finish reason and without {END}")
        if reply.first is None and not reply.output_tokens:
            raise NoCompletion("the reply holds no generated text")
    except NoCompletion as error:
        reply.kind, reply.fault = "garbage", str(error)


def _event(reply: Reply, document: Any, at: float) -> None:
    if document.get("error"):
        raise NoCompletion(f"the server reports an error in the stream: {error_text(json.dumps(document))}")
    for choice in document["choices"]:
        finish = choice.get("finish_reason")
        reply.finish = str(finish or reply.finish)
        logprobs = list(chosen_logprobs(choice.get("logprobs")))
        reply.logprobs += len(logprobs)
        reply.not_finite += sum(not math.isfinite(value) for value in logprobs)
        delta = choice.get("delta") or choice.get("message") or {}
        text = "" + (choice.get("text") or delta.get("content") or "")
        thought = "" + (delta.get("reasoning") or delta.get("reasoning_content") or "")
        calls = delta.get("tool_calls") or ()
        for call in calls:
            index, called = call.get("index", 0), call["function"]
            name, arguments = reply.tools.get(index, ("", ""))
            reply.tools[index] = name + (called.get("name") or ""), arguments + (called.get("arguments") or "")
        reply.text += text
        reply.reasoning += thought
        # An empty completion piece is a token whose characters are not complete yet; a chat's first event names the
        # role.
        if reply.first is None and (text or thought or calls or ("text" in choice and not finish)):
            reply.first = at
    if usage := document.get("usage"):
        reply.prompt_tokens, reply.output_tokens = (
            _count(usage.get(name)) for name in ("prompt_tokens", "completion_tokens")
        )


def _count(value: Any) -> int | None:
    """A number of tokens, or None. Raises ValueError for anything else."""
    if value is None or (type(value) is int and 0 <= value < LARGEST_COUNT):
        return value
    raise ValueError(value)


def error_text(text: str) -> str:
    """The sentence in an error document, in any of the forms that servers use."""
    try:
        found = read_json(text)
    except ValueError:
        return shorten(text.strip(), 160)
    for key in ("error", "detail", "message"):
        if isinstance(found, dict) and key in found:
            found = found[key]
    return shorten(found if isinstance(found, str) else json.dumps(found), 160)


# --- the server -------------------------------------------------------------------------------------------------------


def find(
    url: str, *, model: str | None, key: str, wait: float, silence: float, say: Callable[[str], None]
) -> Target:  # fmt: skip
    """Ask the server at ``url`` for its models, and try which dialect it speaks.

    One that refuses or answers with 5xx is asked again for ``wait`` seconds. ServiceError when it doesn't answer as an
    OpenAI-compatible server does, UsageError when it doesn't have ``model``.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or any(c in url for c in " \r\n\t"):
        raise UsageError(f"{url!r} is not the address of a server", hint="it looks like http://127.0.0.1:8000")
    if any(not 33 <= ord(c) <= 126 for c in key):
        raise UsageError("the API key holds a character that no HTTP header may hold")
    target = Target(url.rstrip("/"), model or "", key=key, silence=silence)
    listed = _models(target, wait, say)
    names = ", ".join(list(listed)[:8])
    if model is None and len(listed) != 1:
        what = f"has {len(listed)} models: {names}" if listed else "lists no model"
        raise UsageError(f"{target.url} {what}", hint="choose one: --model NAME")
    name = model or next(iter(listed))
    entry = listed.get(name, {})
    try:
        return _dialect(replace(target, model=name, root=str(entry.get("root") or ""), max_len=_limit(entry)))
    except ServiceError:
        if name in listed or not listed:  # some servers take models that they don't list, so it was tried
            raise
        hint = f"choose one: --model {next(iter(listed))}"
        raise UsageError(f"{target.url} has no model {name!r}; it has: {names}", hint=hint) from None


def _models(target: Target, wait: float, say: Callable[[str], None]) -> dict[str, dict[str, Any]]:
    deadline, said = time.monotonic() + wait, ""
    while True:
        try:
            status, document = short_answer("GET", f"{target.url}/v1/models", target.headers, min(target.silence, 30))
            if status < 500:
                return _listed(target.url, status, document)
            why = f"/v1/models answers {status}"
        except OSError as error:
            why = str(error)
        if time.monotonic() >= deadline:
            hint = "`envgen up serve` starts it, `envgen ps` shows it"
            raise ServiceError(f"{target.url} is not ready: {why}", hint=hint)
        if why != said:
            say(f"  waiting for {target.url}: {why}")
            said = why
        time.sleep(0.5)


def _listed(url: str, status: int, document: Any) -> dict[str, dict[str, Any]]:
    if status in (401, 403):
        raise UsageError(f"{url} wants an API key", hint="export it, and name the variable: --api-key-env NAME")
    try:
        if status == 200:
            return {one["id"]: one for one in document["data"] if isinstance(one["id"], str)}
    except (KeyError, TypeError):
        pass
    start = shorten(document if isinstance(document, str) else json.dumps(document), 80)
    raise ServiceError(f"{url} is not an OpenAI-compatible server: /v1/models answers {status}: {start or '(nothing)'}",
                       hint="the address is that of the server itself, without /v1")  # fmt: skip


def _limit(entry: Mapping[str, Any]) -> int | None:
    """vLLM and SGLang give max_model_len; llama.cpp what the model was trained for."""
    meta = entry.get("meta")
    for value in (entry.get("max_model_len"), meta.get("n_ctx_train") if isinstance(meta, dict) else None):
        if isinstance(value, int) and 0 < value < LARGEST_COUNT:
            return value
    return None


def _dialect(target: Target) -> Target:
    """Two tokens each way, until the server takes it: completions or chat, with ignore_eos or without."""
    last = Reply()
    for api, exact in ((COMPLETIONS, True), (COMPLETIONS, False), (CHAT, True), (CHAT, False)):
        tried = replace(target, api=api, exact=exact)
        last = send(tried, [tried.body("Hello", 2)]).replies[0]
        if not last.fault:
            notes = (
                (api == CHAT, "the server has no /v1/completions: chat is used, whose template adds tokens to each "
                              "prompt"),
                (not exact, "the server does not take ignore_eos: replies may be shorter than asked"),
                (last.output_tokens is None, "the server gives no usage: tokens can't be counted"),
            )  # fmt: skip
            return replace(tried, notes=tuple(note for holds, note in notes if holds))
        if last.status not in (400, 404, 405, 422, 501):
            break
    raise ServiceError(f"{target.url} does not complete a prompt: {last.fault}")


class Prompts:
    """Prompts of about a number of tokens; no two begin alike, so that no prefix cache answers them."""

    def __init__(self, target: Target, seed: int) -> None:
        self._target = target
        self.seed = seed
        self._random = random.Random(seed)
        self._ratio = 0.0  # tokens a word, by the server's count

    def of(self, tokens: int) -> str:
        """One prompt, rather a little shorter than longer."""
        if not self._ratio:
            reply = send(self._target, [self._target.body(self._words(64), 1)]).replies[0]
            self._ratio = max(0.2, (reply.prompt_tokens or 96) / 64)
        return self._words(max(1, int(tokens / self._ratio)))

    def _words(self, count: int) -> str:
        return " ".join(self._random.choices(WORDS, k=count))
