"""What a server answers: its events, the completion that they hold, and whether that proves that it works."""

from __future__ import annotations

import contextlib
import json
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import requests

from envgen.engine.values import MISSHAPEN, read_json
from envgen.text import shorten, visible

LARGEST = 1 << 20  # bytes; the list of a thousand models has a fifth of it
LARGEST_COUNT = 1 << 53  # of tokens: what is larger would not fit a float
_SHOWN = 200  # characters of what is not JSON


def short_answer(method: str, url: str, headers: Mapping[str, str], timeout: float) -> tuple[int, Any]:
    """Status and document. OSError with a reason in plain words when there is no answer."""
    try:
        with requests.Session() as session:
            session.trust_env = False  # no proxy between us and a server
            response = session.request(method, url, headers=headers, timeout=timeout, stream=True,
                                       allow_redirects=False)  # fmt: skip
            return response.status_code, document_of(response)
    except requests.RequestException as error:
        late = f"no answer within {timeout:g} s"
        raise OSError(late if isinstance(error, requests.Timeout) else _reason(error)) from None


def document_of(response: requests.Response | bytes) -> Any:
    """The JSON document, or else the beginning of the text; "" for one that is too long."""
    body = response if isinstance(response, bytes) else body_of(response)
    try:
        return read_json(body)
    except ValueError:
        return body[: 4 * _SHOWN].decode("utf-8", "replace")[:_SHOWN] if len(body) <= LARGEST else ""


def body_of(response: requests.Response) -> bytes:
    """What a server sent; of an answer that is too long, the beginning."""
    found = bytearray()
    with contextlib.closing(response):
        for chunk in response.iter_content(64 << 10):
            found += chunk
            if len(found) > LARGEST:
                break
    return bytes(found)


Part = tuple[float, bytes]  # when it arrived (seconds, monotonic), and what
END = "[DONE]"
LOWEST = -9999.0  # what vLLM writes for minus infinity
LONGEST = 1 << 20  # bytes; a longer event is not a token, a longer stream not the few that were asked for


class BrokenOff(Exception):
    """The stream ended before it said that it does."""


class NoCompletion(Exception):
    """What came is not a part of a completion; the text is what it looks like."""


@dataclass
class Completion:
    """What a server generated, of /v1/completions or of a chat; counts of tokens are its own, None: it gave none."""

    text: str = ""
    logprobs: list[float] = field(default_factory=list)
    reasoning: str = ""
    tools: dict[int, tuple[str, str]] = field(default_factory=dict)  # index -> name, arguments
    finish: str = ""
    first: float | None = None  # when the first generated text came
    prompt_tokens: int | None = None
    output_tokens: int | None = None

    def take(self, document: Any, at: float = 0.0) -> Completion:
        """Take in a part of a stream, or a whole answer. Raises NoCompletion."""
        try:
            for choice in document["choices"]:
                self._choice(choice, at)
            # The last part of a stream may hold nothing but figures.
            if usage := document.get("usage") if document["choices"] else document["usage"]:
                self.prompt_tokens, self.output_tokens = (
                    _count(usage.get(name)) for name in ("prompt_tokens", "completion_tokens")
                )
        except MISSHAPEN:
            raise NoCompletion(_shown(document)) from None
        return self

    def _choice(self, choice: Any, at: float) -> None:
        finish = choice.get("finish_reason")
        self.finish = str(finish or self.finish)
        self.logprobs += chosen_logprobs(choice.get("logprobs"))
        delta = choice.get("delta") or choice.get("message") or {}
        text = "" + (choice.get("text") or delta.get("content") or "")
        thought = "" + (delta.get("reasoning") or delta.get("reasoning_content") or "")
        calls = delta.get("tool_calls") or ()
        for call in calls:
            index, called = call.get("index", 0), call["function"]
            name, arguments = self.tools.get(index, ("", ""))
            self.tools[index] = name + (called.get("name") or ""), arguments + (called.get("arguments") or "")
        self.text += text
        self.reasoning += thought
        # An empty completion piece is a token whose characters are not complete yet; a chat's first event names the
        # role.
        if self.first is None and (text or thought or calls or ("text" in choice and not finish)):
            self.first = at


def _count(value: Any) -> int | None:
    """A number of tokens, or None. Raises ValueError for anything else."""
    if value is None or (type(value) is int and 0 <= value < LARGEST_COUNT):
        return value
    raise ValueError(value)


def read_events(parts: Iterable[Part], largest: int = LONGEST) -> Completion:
    """The completion of a whole stream. Raises BrokenOff without its end, NoCompletion for what is not part of one."""
    found, count, size = Completion(), 0, 0
    for at, data in stamped(parts):
        size += len(data)
        if size > largest:
            raise NoCompletion(f"more than {largest >> 20} MiB for a few tokens")
        if data == END:
            return found
        try:
            document = read_json(data)
        except ValueError:
            raise NoCompletion(_shown(data)) from None
        if isinstance(document, dict) and "error" in document and "choices" not in document:
            raise BrokenOff(f"after {count} events the server sent an error: {error_text(document)}")
        found.take(document, at)
        count += 1
    if not found.finish:
        raise BrokenOff(f"{count} events came, and the connection was closed without {END}")
    return found


def error_text(found: Any) -> str:
    """The sentence in an error document, in any of the forms that servers use."""
    for key in ("error", "detail", "message"):
        if isinstance(found, dict) and key in found:
            found = found[key]
    return shorten(found if isinstance(found, str) else json.dumps(found, default=str), 160)


def stamped(parts: Iterable[Part]) -> Iterator[tuple[float, str]]:
    """The data of each whole event, with the arrival of the bytes that completed it. Raises NoCompletion."""
    rest = b""
    data: list[str] = []
    for at, chunk in parts:
        rest += chunk
        if len(rest) > LONGEST:
            raise NoCompletion("an event of more than 1 MiB")
        # Half of a CRLF may still be on its way.
        whole, half = (rest[:-1], b"\r") if rest.endswith(b"\r") else (rest, b"")
        *lines, rest = whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        rest += half
        for raw in lines:
            line = raw.decode("utf-8", "replace")
            if line.startswith("data:"):
                data.append(line[len("data:") :].removeprefix(" "))
                if data == [END]:  # not every server ends its last event
                    yield at, END
                    return
            elif not line and data:
                yield at, "\n".join(data)
                data = []


def chosen_logprobs(document: Any) -> Iterator[float]:
    """The log probabilities of the tokens that were chosen, in the form of completions or of chat.

    The prompt is not echoed, so every token has one: null is what a server makes of NaN, JSON having none. For minus
    infinity vLLM writes -9999.0. What is not a number at all counts as NaN.
    """
    if not isinstance(document, dict):
        return
    tokens, content = document.get("token_logprobs"), document.get("content")
    values = list(tokens) if isinstance(tokens, list) else []
    if isinstance(content, list):
        values += [one["logprob"] for one in content if isinstance(one, dict) and "logprob" in one]
    yield from map(_number, values)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return math.nan
    try:
        found = float(value)
    except OverflowError:
        return math.inf
    except ValueError:
        return math.nan
    return -math.inf if found <= LOWEST else found


def _shown(document: Any) -> str:
    text = document if isinstance(document, str) else json.dumps(document, default=str)
    return visible(text[:200])


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
    headers = {"Authorization": f"Bearer {question.api_key}"} if question.api_key else {}
    on_step("/v1/models")
    found = _listed(base_url, question.model, headers)
    if found is not None:
        return found
    on_step("its first token")
    return _completed(base_url, question, headers, timeout, on_step)


def _listed(base_url: str, model: str, headers: Mapping[str, str]) -> Answer | None:
    """None when /v1/models lists ``model``."""
    try:
        status, document = short_answer("GET", f"{base_url}/v1/models", headers, 10)
    except OSError as error:
        return Answer(False, f"{base_url} does not answer yet ({error})")
    if status in (401, 403):
        key = "it wants an API key; write `secrets: [VLLM_API_KEY]` and export it in your shell"
        return Answer(False, f"/v1/models answers {status}: {key}", fatal=True)
    if status != 200:
        return Answer(False, f"/v1/models answers {status}")
    names = model_names(document)
    if names is None:
        return Answer(False, "/v1/models answers 200 with something that is not a list of models", refused=True)
    if model not in names:
        return Answer(False, listing(names, model), fatal=bool(names))
    return None


def listing(names: Sequence[str], model: str) -> str:
    """What /v1/models lists, in a sentence."""
    shown = ", ".join(visible(name[:80]) for name in names[:8]) + (" ..." if len(names) > 8 else "")
    return f"/v1/models lists {shown or 'nothing'}, not {model}"


def _completed(
    base_url: str, question: Question, headers: Mapping[str, str], timeout: float, on_step: Callable[[str], None]
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
        with requests.Session() as session:
            session.trust_env = False
            response = session.post(f"{base_url}/v1/completions", json=body, headers=headers, timeout=(10, timeout),
                                    stream=True)  # fmt: skip
            streams = response.headers.get("Content-Type", "").startswith("text/event-stream")
            if response.status_code == 200 and streams:
                completion = read_events(counted(response.iter_content(chunk_size=None)))
                answer = judge_completion(completion, question.expect_text)
            else:
                answer = judge(response.status_code, document_of(response), question.expect_text)
    except requests.RequestException as error:
        what = "answer broke off in the middle" if first else "prompt was not answered"
        return Answer(False, f"the first {what} ({_reason(error)})", refused=bool(first))
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
    bad = next((value for value in completion.logprobs if not math.isfinite(value)), None)
    if bad is not None:
        return Answer(False, f"the first completion has a NaN or infinite log probability ({bad:g})", fatal=True)
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
        return "it refuses connections, or closes them"
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
