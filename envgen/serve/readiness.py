"""Does the service really answer? It lists its model and completes a prompt. /health alone proves nothing (pain 16)."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import requests

from envgen.serve.events import BrokenOff, Completion, NoCompletion, Part, body_of, document_of, read_events
from envgen.text import visible

PROMPT = "The capital of France is"
MAX_TOKENS = 12
_TOKENS = re.compile(r"^vllm:(?:generation|prompt)_tokens_total(?:\{[^}]*\})? ([0-9.e+]+)$", re.MULTILINE)


@dataclass(frozen=True)
class Question:
    """What is asked: a model, a prompt, and what the answer must contain (None: any text will do)."""

    model: str
    prompt: str = PROMPT
    expect_text: str | None = None
    api_key: str = field(default="", repr=False)


@dataclass(frozen=True)
class Answer:
    """What the service said. ``ready`` is False while ``why`` says what is missing yet."""

    ready: bool
    why: str = ""
    text: str = ""
    fatal: bool = False  # waiting longer can't help: the service runs and is wrong
    refused: bool = False  # it answered, and not with what was asked for; a few times of that are enough
    first_token: float = 0.0  # seconds


def ask(
    base_url: str, question: Question, *, timeout: float = 120, on_step: Callable[[str], None] = lambda _: None
) -> Answer:
    """Ask ``base_url`` (http://host:port) once: does /v1/models list the model, and does it complete the prompt?

    ``timeout``: seconds between two signs of life of the completion; the first prompt may compile kernels.
    ``on_step`` hears what is being waited for. Never raises for what the service does.
    """
    with requests.Session() as session:
        session.trust_env = False  # a proxy has no business between us and our own machine
        if question.api_key:
            session.headers["Authorization"] = f"Bearer {question.api_key}"
        on_step("/v1/models")
        found = _listed(session, base_url, question.model)
        if found is not None:
            return found
        on_step("its first token")
        return _completed(session, base_url, question, timeout, on_step)


def _listed(session: requests.Session, base_url: str, model: str) -> Answer | None:
    """None when /v1/models lists ``model``."""
    try:
        listed = session.get(f"{base_url}/v1/models", timeout=10, stream=True)
        names = model_names(document_of(listed))
    except requests.RequestException as error:
        return Answer(False, f"{base_url} does not answer yet ({_reason(error)})")
    if listed.status_code in (401, 403):
        return Answer(False, f"/v1/models answers {listed.status_code}: {_KEY}", fatal=True)
    if listed.status_code != 200:
        return Answer(False, f"/v1/models answers {listed.status_code}")
    if names is None:
        return Answer(False, "/v1/models answers 200 with something that is not a list of models", refused=True)
    if model not in names:
        return Answer(False, listing(names, model), fatal=bool(names))
    return None


def listing(names: Sequence[str], model: str) -> str:
    """What /v1/models lists, in a sentence."""
    shown = ", ".join(visible(name[:80]) for name in names[:8]) + (" ..." if len(names) > 8 else "")
    return f"/v1/models lists {shown or 'nothing'}, not {model}"


_KEY = "it wants an API key; write `secrets: [VLLM_API_KEY]` and export it in your shell"


def _completed(
    session: requests.Session, base_url: str, question: Question, timeout: float, on_step: Callable[[str], None]
) -> Answer:
    body = {"model": question.model, "prompt": question.prompt, "max_tokens": MAX_TOKENS, "temperature": 0,
            "logprobs": 1, "stream": True}  # fmt: skip
    began = time.monotonic()
    first = 0.0

    def counted(chunks: Iterator[bytes]) -> Iterator[Part]:
        nonlocal first
        for chunk in chunks:
            first = first or time.monotonic() - began
            on_step("the rest of its answer")
            yield first, chunk

    try:
        with session.post(f"{base_url}/v1/completions", json=body, timeout=(10, timeout), stream=True) as response:
            if response.status_code != 200:
                return judge(response.status_code, document_of(response))
            if not response.headers.get("Content-Type", "").startswith("text/event-stream"):
                answer = judge(200, document_of(response), question.expect_text)
            else:
                completion = read_events(counted(response.iter_content(chunk_size=None)))
                answer = judge_completion(completion, question.expect_text)
    except requests.RequestException as error:
        if first:
            return Answer(False, f"the first answer broke off in the middle ({_reason(error)})", refused=True)
        return Answer(False, f"the first prompt was not answered ({_reason(error)})")
    except BrokenOff as error:
        return Answer(False, f"the first answer broke off in the middle: {error}", refused=True)
    except NoCompletion as error:
        return Answer(False, f"the reply to the first prompt is not a completion: {error}", fatal=True)
    return replace(answer, first_token=first)


def judge(status: int, document: Any, expect_text: str | None = None) -> Answer:
    """Judge the answer to a completion request: status 200, a non-empty text, finite log probabilities."""
    if status in (429, 503):  # not now; it may be later
        return Answer(False, f"the first prompt was answered with {status}: {visible(str(document)[:200])}")
    if status != 200:
        why = f"the first prompt was answered with {status}: {visible(str(document)[:200])}"
        return Answer(False, why, fatal=400 <= status < 500, refused=True)
    try:
        return judge_completion(Completion().take(document), expect_text)
    except NoCompletion as error:
        return Answer(False, f"the reply to the first prompt is not a completion: {error}", fatal=True)


def judge_completion(completion: Completion, expect_text: str | None = None) -> Answer:
    """Judge a completion: a non-empty text, finite log probabilities, the expected words."""
    text = completion.text
    if not text:
        return Answer(False, "the first prompt was answered with an empty text", fatal=True)
    for value in completion.logprobs:
        if not math.isfinite(value):
            why = f"the first completion has a NaN or infinite log probability ({value:g})"
            return Answer(False, why, fatal=True)
    if expect_text is not None and expect_text not in text:
        why = f"the first prompt was completed with {visible(text)!r}, which does not contain {expect_text!r}"
        return Answer(False, why, text=visible(text), fatal=True)
    return Answer(True, text=visible(text))


def model_names(document: Any) -> list[str] | None:
    """The models of a list of them; None for anything else."""
    data = document.get("data") if isinstance(document, dict) else None
    if not isinstance(data, list):
        return None
    return [str(one["id"]) for one in data if isinstance(one, dict) and "id" in one]


def _reason(error: requests.RequestException) -> str:
    if isinstance(error, requests.Timeout):
        return "time-out"
    if isinstance(error, (requests.ConnectionError, requests.exceptions.ChunkedEncodingError)):
        return "connection refused or closed"
    return type(error).__name__


def tokens(url: str) -> float | None:
    """How many tokens a vLLM server has read and written so far; None where it does not say."""
    try:
        with requests.Session() as session:
            session.trust_env = False
            text = body_of(session.get(f"{url}/metrics", timeout=10, stream=True)).decode("utf-8", "replace")
            found = [float(one) for one in _TOKENS.findall(text)]
    except (requests.RequestException, ValueError):
        return None
    return sum(found) if found else None
