"""The server under test: which model it serves, how long a text may be, and which dialect of the API it speaks."""

from __future__ import annotations

import difflib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import requests

from envgen.errors import ServiceError, UsageError
from envgen.serve.load.connection import Address, address
from envgen.serve.load.generate import Request, Result, run_closed
from envgen.serve.load.reply import shown

COMPLETIONS, CHAT = "completions", "chat"
PATHS = {COMPLETIONS: "/v1/completions", CHAT: "/v1/chat/completions"}
Say = Callable[[str], None]
_ASK_AGAIN = 0.5


@dataclass(frozen=True)
class Target:
    """A server that answered. ``max_len``: tokens of prompt and completion together; None: it doesn't say."""

    url: str
    model: str
    where: Address
    max_len: int | None = None
    api: str = COMPLETIONS
    exact: bool = True  # it takes ignore_eos, so a completion is as long as was asked
    notes: tuple[str, ...] = ()
    root: str = ""  # where the server has the model from: a folder or a name

    def request(self, prompt: str, output_tokens: int, *, prompt_tokens: int = 0, logprobs: bool = False) -> Request:
        """A streamed completion of ``prompt`` at temperature 0."""
        body: dict[str, Any] = {
            "model": self.model, "max_tokens": output_tokens, "temperature": 0,
            "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        if self.api == CHAT:
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        if self.exact:
            body["ignore_eos"] = True
        if logprobs:
            body["logprobs"] = True if self.api == CHAT else 1
        raw = self.where.request(PATHS[self.api], json.dumps(body).encode())
        return Request(raw, prompt_tokens, output_tokens)


def find(url: str, *, model: str | None, key: str = "", wait: float, silence: float, say: Say) -> Target:
    """Ask the server at ``url`` for its models, and try which dialect it speaks.

    A server that refuses or answers with 5xx is asked again for ``wait`` seconds: it may be loading. ``silence``:
    seconds without a byte after which a reply counts as hanging. Raises ServiceError when it doesn't answer as an
    OpenAI-compatible server does, UsageError when it doesn't have ``model``.
    """
    where = address(url, key)
    listed = _models(url.rstrip("/"), key, wait, min(silence, 30), say)
    found = {str(one["id"]): one for one in listed}
    name = _choose(tuple(found), model, url)
    one = found.get(name, {})
    target = Target(url.rstrip("/"), name, where, _limit(one), root=str(one.get("root") or ""))
    try:
        return _try(target, silence)
    except ServiceError:
        if name in found or not found:
            raise
        # Some servers take models that they don't list, so it was tried all the same. (One that lists none at all does
        # not say by that which it has: what it answered counts.)
        raise _no_such_model(name, tuple(found), url) from None


def _models(url: str, key: str, wait: float, timeout: float, say: Say) -> list[dict[str, Any]]:
    deadline = time.monotonic() + wait
    said = ""
    while True:
        why, found = _ask(url, key, timeout)
        if found is not None:
            return found
        if time.monotonic() >= deadline:
            raise ServiceError(f"{url} is not ready: {why}", hint="`envgen up serve` starts it, `envgen ps` shows it")
        if why != said:
            say(f"  waiting for {url}: {why}")
            said = why
        time.sleep(_ASK_AGAIN)


def _ask(url: str, key: str, timeout: float) -> tuple[str, list[dict[str, Any]] | None]:
    """The models, or None and why there are none yet. Raises for what waiting can't mend."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with requests.Session() as session:
            session.trust_env = False  # neither a proxy nor a .netrc has any business here
            reply = session.get(f"{url}/v1/models", headers=headers, timeout=timeout)
    except requests.Timeout:
        return f"no answer to /v1/models within {timeout:g} s", None
    except requests.RequestException as error:
        reason = "it refuses connections" if isinstance(error, requests.ConnectionError) else type(error).__name__
        return reason, None
    if reply.status_code >= 500:
        return f"/v1/models answers {reply.status_code}", None
    if reply.status_code in (401, 403):
        raise UsageError(f"{url} wants an API key", hint="put it into a variable and name that: --api-key-env NAME")
    try:
        data = reply.json()["data"]
        models: list[dict[str, Any]] | None = [one for one in data if isinstance(one.get("id"), str)]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        models = None
    if reply.status_code != 200 or models is None:
        start = shown(reply.text[:200], 80)
        raise ServiceError(
            f"{url} is no OpenAI-compatible server: /v1/models answers {reply.status_code}: {start or '(nothing)'}",
            hint="the address is that of the server itself, without /v1",
        )
    return "", models


def _choose(names: tuple[str, ...], model: str | None, url: str) -> str:
    if model is not None:
        return model
    if len(names) != 1:
        told = f"has {len(names)} models: {', '.join(names[:8])}" if names else "lists no model"
        raise UsageError(f"{url} {told}", hint="name one: --model NAME")
    return names[0]


def _no_such_model(model: str, names: tuple[str, ...], url: str) -> UsageError:
    near = difflib.get_close_matches(model, names, 1)
    return UsageError(
        f"{url} has no model {model!r}; it has: {', '.join(names[:8]) or 'none that it lists'}",
        hint=f"did you mean `{near[0]}`?" if near else "choose one: --model NAME",
    )


def _limit(model: dict[str, Any]) -> int | None:
    """vLLM and SGLang say max_model_len; llama.cpp tells what the model was trained for."""
    meta = model.get("meta")
    for value in (model.get("max_model_len"), meta.get("n_ctx_train") if isinstance(meta, dict) else None):
        if isinstance(value, int) and value > 0:
            return value
    return None


def _try(target: Target, silence: float) -> Target:
    """One token each way, until the server takes it: completions or chat, with ignore_eos or without."""
    last: Result | None = None
    for api in (COMPLETIONS, CHAT):
        for exact in (True, False):
            tried = replace(target, api=api, exact=exact)
            (last,) = run_closed(tried.where, [tried.request("Hello", 2)], 1, silence=silence).results
            if last.good:
                return replace(tried, notes=_notes(tried, last))
            if last.status in (404, 405, 501):
                break  # no such path: the other one
            if last.status not in (400, 422):
                raise ServiceError(f"{target.url} does not complete a prompt: {last.sentence}")
    assert last is not None
    raise ServiceError(f"{target.url} does not complete a prompt: {last.sentence}")


def _notes(target: Target, answer: Result) -> tuple[str, ...]:
    notes = []
    if target.api == CHAT:
        notes.append("the server has no /v1/completions: chat is used, whose template adds tokens to each prompt")
    if not target.exact:
        notes.append("the server does not take ignore_eos: completions may be shorter than asked")
    if answer.reply.output_tokens is None:
        notes.append("the server tells no usage: pieces of the stream are counted as tokens")
    return tuple(notes)
