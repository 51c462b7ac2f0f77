"""Does the service really answer? It lists its model and completes a prompt. /health alone proves nothing (pain 16)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import requests

PROMPT = "The capital of France is"
MAX_TOKENS = 12


@dataclass(frozen=True)
class Answer:
    """What the service said. ``ready`` is False while ``why`` says what is missing yet."""

    ready: bool
    why: str = ""
    text: str = ""
    fatal: bool = False  # waiting longer can't help: the service runs and is wrong
    refused: bool = False  # it was asked to complete a prompt, and answered with an error of its own


def ask(base_url: str, model: str, *, timeout: float = 120) -> Answer:
    """Ask ``base_url`` (http://host:port) once: does /v1/models list ``model``, and does it complete a prompt?

    ``timeout`` is in seconds for the completion: the first prompt may compile kernels. Never raises for what the
    service does; a refused connection or an error status is an Answer that is not ready.
    """
    with requests.Session() as session:
        session.trust_env = False  # a proxy has no business between us and our own machine
        try:
            listed = session.get(f"{base_url}/v1/models", timeout=10)
        except requests.RequestException as error:
            return Answer(False, f"{base_url} does not answer yet ({_reason(error)})")
        if listed.status_code != 200:
            return Answer(False, f"/v1/models answers {listed.status_code}")
        names = _model_names(listed)
        if model not in names:
            return Answer(False, f"/v1/models lists {', '.join(names) or 'nothing'}, not {model}", fatal=bool(names))
        body = {"model": model, "prompt": PROMPT, "max_tokens": MAX_TOKENS, "temperature": 0, "logprobs": 1}
        try:
            done = session.post(f"{base_url}/v1/completions", json=body, timeout=timeout)
        except requests.RequestException as error:
            return Answer(False, f"the first prompt was not answered ({_reason(error)})")
        return judge(done.status_code, _json(done))


def judge(status: int, document: Any) -> Answer:
    """Judge the answer to a completion request: status 200, a non-empty text, finite log probabilities."""
    if status != 200:
        why = f"the first prompt was answered with {status}: {str(document)[:200]}"
        return Answer(False, why, fatal=400 <= status < 500, refused=True)
    try:
        choice = document["choices"][0]
        text = choice["text"]
    except (KeyError, IndexError, TypeError):
        return Answer(False, "the first prompt was answered with something that is no completion", fatal=True)
    if not isinstance(text, str) or not text:
        return Answer(False, "the first prompt was answered with an empty text", fatal=True)
    chances = (choice.get("logprobs") or {}).get("token_logprobs") or ()
    if any(isinstance(value, float) and not math.isfinite(value) for value in chances):
        return Answer(False, "the first completion has a NaN or infinite log probability", fatal=True)
    return Answer(True, text=printable(text))


def printable(text: str) -> str:
    """The text with control characters spelled out: a model's output must not drive the user's terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _model_names(response: requests.Response) -> list[str]:
    document = _json(response)
    data = document.get("data") if isinstance(document, dict) else None
    return [str(one["id"]) for one in data or () if isinstance(one, dict) and "id" in one]


def _json(response: requests.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return response.text[:200]


def _reason(error: requests.RequestException) -> str:
    if isinstance(error, requests.Timeout):
        return "time-out"
    if isinstance(error, requests.ConnectionError):
        return "connection refused or closed"
    return type(error).__name__
