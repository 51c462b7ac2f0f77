"""Streamed requests to an OpenAI-compatible server: completions and chat, several at a time or at a rate, each timed.

For smoke and stress only; throughput is measured by llama-benchy and ``vllm bench serve`` (tools.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import json
import math
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from envgen.engine.base import read_json
from envgen.errors import ServiceError, UsageError
from envgen.serve.events import END, NoCompletion, Part, chosen_logprobs, stamped
from envgen.text import reason_of, shorten

if TYPE_CHECKING:
    import aiohttp

T = TypeVar("T")
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

    due: float = 0.0
    ended: float = 0.0
    status: int = 0
    kind: str = ""
    fault: str = ""
    text: str = ""
    reasoning: str = ""
    tools: dict[int, tuple[str, str]] = field(default_factory=dict)  # index -> name, arguments
    pieces_at: list[float] = field(default_factory=list)
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    finish: str = ""
    logprobs: int = 0
    not_finite: int = 0

    @property
    def ttft(self) -> float | None:
        """Seconds to the first generated text."""
        return self.pieces_at[0] - self.due if self.pieces_at else None

    @property
    def latency(self) -> float:
        """Seconds from the time it was due to its last byte."""
        return self.ended - self.due

    def sample(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """As a record has it."""
        gaps = [(after - before) * 1000 for before, after in pairwise(self.pieces_at)]
        found: dict[str, Any] = {"unit": "request", **asked, "status": self.status, "latency_ms": self.latency * 1000}
        if self.fault:
            return {**found, "error": self.fault, "error_kind": self.kind}
        if self.ttft is not None:
            found["ttft_ms"] = self.ttft * 1000
        if gaps and gaps[-1] >= 0 and sum(gaps) > 0:
            found["itl_ms"] = sum(gaps) / len(gaps)
        seen = {"prompt_tokens_seen": self.prompt_tokens, "output_tokens_seen": self.output_tokens}
        return {**found, **{name: value for name, value in seen.items() if value is not None}}


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

    def body(self, prompt: str, tokens: int, *, logprobs: bool = False) -> dict[str, Any]:
        """A completion of ``prompt``, in the dialect that the server speaks."""
        body = self.chat(prompt, tokens) if self.api == CHAT else {**self._common(tokens), "prompt": prompt}
        if logprobs:
            body["logprobs"] = True if self.api == CHAT else 1
        if self.exact:
            body["ignore_eos"] = True
        return body

    def chat(self, prompt: str, tokens: int, **more: Any) -> dict[str, Any]:
        """A chat completion, as users ask."""
        return {**self._common(tokens), "messages": [{"role": "user", "content": prompt}], **more}

    def _common(self, tokens: int) -> dict[str, Any]:
        return {"model": self.model, "max_tokens": tokens, "temperature": 0, "stream": True,
                "stream_options": {"include_usage": True}}  # fmt: skip


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


def _run(work: Coroutine[Any, Any, T]) -> T:
    """To its end, with aiohttp: heavy, and there only with the extra, so that it is imported here alone."""
    global aiohttp
    import aiohttp

    return asyncio.run(work)


def send(
    target: Target,
    bodies: Sequence[Mapping[str, Any]],
    *,
    concurrency: int = 1,
    rate: float | None = None,
    on_reply: Callable[[Reply], None] = lambda _: None,
    alive: Callable[[], bool] | None = None,
) -> Load:
    """Send all of them: ``concurrency`` at a time, or ``rate`` a second, however slow the server is.

    With a rate the latency counts from the time that a request was due, so a stall shows in all that come meanwhile.
    ``alive`` is asked every second (in a thread): the connections of a killed container may stay silent.
    """
    return _run(_send(target, bodies, concurrency, rate, on_reply, alive))


async def _send(
    target: Target, bodies: Sequence[Mapping[str, Any]], concurrency: int, rate: float | None,
    on_reply: Callable[[Reply], None], alive: Callable[[], bool] | None,
) -> Load:  # fmt: skip
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=min(target.silence, 30), sock_read=target.silence)
    # A connection for each request: a server may close an idle one at the moment that it is used again.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    replies: list[Reply] = []
    lost = 0
    gone = asyncio.Event()
    began = time.monotonic()
    slots = asyncio.Semaphore(len(bodies) if rate else concurrency)

    async def one(session: aiohttp.ClientSession, number: int) -> None:
        nonlocal lost
        async with slots:
            if gone.is_set():
                return
            reply = Reply(due=began + number / rate if rate else time.monotonic())
            await _ask(session, target, bodies[number], reply)
        replies.append(reply)
        on_reply(reply)
        lost = lost + 1 if reply.kind in LOST else 0
        if lost >= GONE:
            gone.set()

    async def feed(session: aiohttp.ClientSession) -> None:
        async with asyncio_group() as tasks:
            for number in range(len(bodies)):
                if rate:
                    await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
                if gone.is_set():
                    break
                tasks.append(asyncio.create_task(one(session, number)))

    async def watch() -> None:
        while alive is not None:
            await asyncio.sleep(LOOK_EVERY)
            if not await asyncio.to_thread(alive):
                gone.set()
        await gone.wait()

    async with aiohttp.ClientSession(timeout=timeout, connector=connector, headers=_headers(target.key)) as session:
        work = asyncio.create_task(feed(session))
        guard = asyncio.create_task(watch() if alive else gone.wait())
        try:
            await asyncio.wait({work, guard}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (work, guard):
                task.cancel()
            results = await asyncio.gather(work, guard, return_exceptions=True)
    for found in results:
        if isinstance(found, Exception):  # from on_reply: the record can't be written
            raise found
    return Load(replies, time.monotonic() - began, gone.is_set())


def _headers(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


def post(target: Target, path: str) -> None:
    """An empty POST. ServiceError unless it succeeds."""
    _run(_post(target, path))


async def _post(target: Target, path: str) -> None:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=target.silence)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=_headers(target.key)) as session,
            session.post(target.url + path, allow_redirects=False) as response,
        ):
            status, text = response.status, (await _start_of(response)).decode(errors="replace")
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
        raise ServiceError(f"{target.url}{path} gives no answer: {reason_of(error)}") from None
    if status != 200:
        raise ServiceError(f"{target.url}{path} answers {status}: {error_text(text)}")


@contextlib.asynccontextmanager
async def asyncio_group() -> Any:
    """Tasks that end together: the first error ends all (``asyncio.TaskGroup`` of Python 3.11)."""
    tasks: list[asyncio.Task[None]] = []
    try:
        yield tasks
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _ask(session: aiohttp.ClientSession, target: Target, body: Mapping[str, Any], reply: Reply) -> None:
    path = CHAT if "messages" in body else COMPLETIONS
    parts: list[Part] = []
    size = 0
    try:
        async with session.post(target.url + path, json=body, allow_redirects=False) as response:
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
    except aiohttp.ClientResponseError as error:
        reply.kind, reply.fault = "garbage", f"the server's answer is not HTTP: {shorten(error.message, 100)}"
    except (aiohttp.ClientError, OSError) as error:
        if reply.status:
            reply.kind = "cut"
            reply.fault = f"the server closed the connection in the middle of a reply ({size} bytes)"
        else:
            reply.kind, reply.fault = (
                "closed",
                f"the server closed the connection without an answer ({reason_of(error)})",
            )
    reply.ended = parts[-1][0] if parts else time.monotonic()
    if not reply.fault:
        read(reply, parts)


def read(reply: Reply, parts: Sequence[Part]) -> None:
    """Take in a whole reply: its text, tokens and faults. Never raises for what the server wrote."""
    start = b"".join(part for _, part in parts)[:2000].decode(errors="replace")
    if reply.status != 200:
        reply.kind, reply.fault = "status", f"answered with {reply.status}: {error_text(start)}"
        return
    seen, done = 0, False
    try:
        for at, data in stamped(parts):
            done = data == END
            if done:
                break
            seen += 1
            reply.fault = _event(reply, data, at)
            if reply.fault:
                break
    except NoCompletion as error:
        reply.fault = f"the reply is not an event stream: {error}"
    if not reply.fault:
        if not seen:
            reply.fault = f"the reply is not an event stream: {shorten(start.strip(), 160) or '(empty)'}"
        elif not done and not reply.finish:
            reply.fault = f"the stream ended after {seen} events, without a finish reason and without {END}"
        elif not reply.pieces_at and not reply.output_tokens:
            reply.fault = "the reply holds no generated text"
    if reply.fault:
        reply.kind = "garbage"


def _event(reply: Reply, data: str, at: float) -> str:
    """Take in one event; what is wrong with it."""
    try:
        document = read_json(data)
    except ValueError:
        return f"an event is not JSON: {shorten(data, 160)}"
    if not isinstance(document, dict) or not {"choices", "usage", "error"} & set(document):
        return f"an event is not part of a completion: {shorten(data, 160)}"
    if document.get("error"):
        return f"the server reports an error in the stream: {error_text(data)}"
    usage = document.get("usage")
    if isinstance(usage, dict):
        reply.prompt_tokens = _count(usage.get("prompt_tokens"), reply.prompt_tokens)
        reply.output_tokens = _count(usage.get("completion_tokens"), reply.output_tokens)
    choices = document.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict):
            _choice(reply, choice, at)
    return ""


def _choice(reply: Reply, choice: Mapping[str, Any], at: float) -> None:
    ended = isinstance(choice.get("finish_reason"), str)
    if ended:
        reply.finish = str(choice["finish_reason"])
    for value in chosen_logprobs(choice.get("logprobs")):
        reply.logprobs += 1
        reply.not_finite += not math.isfinite(value)
    delta = choice.get("delta") or choice.get("message")
    delta = delta if isinstance(delta, dict) else {}
    text = "".join(one for one in (choice.get("text"), delta.get("content")) if isinstance(one, str))
    thought = "".join(one for one in (delta.get("reasoning"), delta.get("reasoning_content")) if isinstance(one, str))
    calls = delta.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            index = _count(call.get("index"), 0) or 0
            name, arguments = reply.tools.get(index, ("", ""))
            reply.tools[index] = (
                name + str(function.get("name") or ""),
                arguments + str(function.get("arguments") or ""),
            )
    reply.text += text
    reply.reasoning += thought
    # An empty completion piece is a token whose characters are not complete yet; a chat's first event names the role.
    if text or thought or calls or (isinstance(choice.get("text"), str) and not ended):
        reply.pieces_at.append(at)


def _count(value: Any, before: int | None) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST_COUNT else before


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
    url = url.rstrip("/")
    listed = _run(_models(url, key, wait, min(silence, 30), say))
    if model is None and len(listed) != 1:
        what = f"has {len(listed)} models: {', '.join(list(listed)[:8])}" if listed else "lists no model"
        raise UsageError(f"{url} {what}", hint="choose one: --model NAME")
    name = model or next(iter(listed))
    entry = listed.get(name, {})
    target = Target(url, name, str(entry.get("root") or ""), _limit(entry), key=key, silence=silence)
    try:
        return _dialect(target)
    except ServiceError:
        if name in listed or not listed:  # some servers take models that they don't list, so it was tried
            raise
        near = difflib.get_close_matches(name, listed, 1)
        raise UsageError(
            f"{url} has no model {name!r}; it has: {', '.join(list(listed)[:8])}",
            hint=f"did you mean `{near[0]}`?" if near else "choose one: --model NAME",
        ) from None


async def _start_of(response: aiohttp.ClientResponse, most: int = 1 << 20) -> bytes:
    """The body, or its first ``most`` bytes. One ``read`` gives only what has arrived."""
    body = b""
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) >= most:
            break
    return body[:most]


async def _models(
    url: str, key: str, wait: float, timeout: float, say: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    deadline, said = time.monotonic() + wait, ""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout), headers=_headers(key)) as session:
        while True:
            try:
                async with session.get(f"{url}/v1/models", allow_redirects=False) as response:
                    status, text = response.status, (await _start_of(response)).decode(errors="replace")
                if status in (401, 403):
                    raise UsageError(
                        f"{url} wants an API key", hint="export it, and name the variable: --api-key-env NAME"
                    )
                if status < 500:
                    return _listed(url, status, text)
                why = f"/v1/models answers {status}"
            except asyncio.TimeoutError:
                why = f"no answer to /v1/models within {timeout:g} s"
            except (aiohttp.ClientError, OSError) as error:
                refused = isinstance(error, aiohttp.ClientConnectorError)
                why = "it refuses connections" if refused else type(error).__name__
            if time.monotonic() >= deadline:
                raise ServiceError(
                    f"{url} is not ready: {why}", hint="`envgen up serve` starts it, `envgen ps` shows it"
                )
            if why != said:
                say(f"  waiting for {url}: {why}")
                said = why
            await asyncio.sleep(0.5)


def _listed(url: str, status: int, text: str) -> dict[str, dict[str, Any]]:
    try:
        models = {one["id"]: one for one in read_json(text)["data"] if isinstance(one["id"], str)}
    except (ValueError, KeyError, TypeError):
        models = None
    if status != 200 or models is None:
        start = shorten(text[:200].strip(), 80)
        raise ServiceError(
            f"{url} is not an OpenAI-compatible server: /v1/models answers {status}: {start or '(nothing)'}",
            hint="the address is that of the server itself, without /v1",
        )
    return models


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
    for api in (COMPLETIONS, CHAT):
        for exact in (True, False):
            tried = Target(**{**vars(target), "api": api, "exact": exact})
            last = send(tried, [tried.body("Hello", 2)]).replies[0]
            if not last.fault:
                return Target(**{**vars(tried), "notes": _notes(tried, last)})
            if last.status in (404, 405, 501):
                break  # no such path: the other one
            if last.status not in (400, 422):
                raise ServiceError(f"{target.url} does not complete a prompt: {last.fault}")
    raise ServiceError(f"{target.url} does not complete a prompt: {last.fault}")


def _notes(target: Target, reply: Reply) -> tuple[str, ...]:
    notes = []
    if target.api == CHAT:
        notes.append("the server has no /v1/completions: chat is used, whose template adds tokens to each prompt")
    if not target.exact:
        notes.append("the server does not take ignore_eos: replies may be shorter than asked")
    if reply.output_tokens is None:
        notes.append("the server gives no usage: tokens can't be counted")
    return tuple(notes)


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
            text = self._words(64)
            reply = send(self._target, [self._target.body(text, 1)]).replies[0]
            self._ratio = max(0.2, (reply.prompt_tokens or 96) / 64)
        return self._words(max(1, int(tokens / self._ratio)))

    def _words(self, count: int) -> str:
        return " ".join(self._random.choice(WORDS) for _ in range(count))
