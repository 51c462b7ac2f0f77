"""A server's responses: documents, server-sent events, and the completion that they contain."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from envgen.engine.values import MISSHAPEN, read_json
from envgen.engine.web import body_of
from envgen.text import shorten, visible

if TYPE_CHECKING:
    import requests

LARGEST = 1 << 20  # bytes of a document; a list of a thousand models has a fifth of it
LARGEST_COUNT = 1 << 53  # tokens; a float holds whole numbers up to this
_SHOWN = 200  # characters of a text that is not JSON


def short_answer(
    method: str, url: str, headers: Mapping[str, str], timeout: float
) -> tuple[int, Any]:
    """Status and document. OSError with the reason without an answer."""
    status, body = answered(method, url, headers, timeout)
    return status, document_of(body)


def answered(
    method: str,
    url: str,
    headers: Mapping[str, str],
    timeout: float,
    *,
    json: Any = None,
    largest: int = LARGEST,
) -> tuple[int, bytes]:
    """Status and body (its beginning, if larger than ``largest``). OSError with the reason without
    an answer.
    """
    try:
        with responding(method, url, headers, timeout, json=json) as response:
            return response.status_code, body_of(response, largest)
    except OSError as error:
        raise OSError(reason_of_request(error, timeout)) from None


@contextmanager
def responding(
    method: str,
    url: str,
    headers: Mapping[str, str],
    timeout: float | tuple[float, float],
    *,
    json: Any = None,
) -> Iterator[requests.Response]:
    """The beginning of a response; its body is read inside. OSError without one."""
    import requests  # a tenth of a second: only where a server is asked

    with requests.Session() as session:
        session.trust_env = False  # no proxy between us and a server
        try:
            response = session.request(
                method,
                url,
                headers=headers,
                timeout=timeout,
                stream=True,
                allow_redirects=False,
                json=json,
            )
        except ValueError:  # as an API key with a newline; nothing of it belongs into a message
            raise NotCarried(
                "the address or a header has characters that HTTP does not carry"
            ) from None
        yield response


class NotCarried(OSError):
    """A request that can't be sent as it is."""


def document_of(response: requests.Response | bytes) -> Any:
    """The JSON document, else the beginning of the text; "" for a body that is too long."""
    body = response if isinstance(response, bytes) else body_of(response, LARGEST)
    try:
        return read_json(body)
    except ValueError:
        if len(body) > LARGEST:
            return ""
        return body[: 4 * _SHOWN].decode("utf-8", "replace")[:_SHOWN]


END = "[DONE]"
LOWEST = -9999.0  # vLLM's minus infinity
LONGEST = 1 << 20  # bytes of one event, and of a stream of a few tokens


class BrokenOff(Exception):
    """The stream ended without its end mark."""


class NoCompletion(Exception):
    """The data is not part of a completion; the message shows its beginning."""


@dataclass
class Completion:
    """The output of /v1/completions or of a chat. ``model``: its name, as the server has it; "" if
    it gave none.
    """

    text: str = ""
    logprobs: list[float] = field(default_factory=list)
    reasoning: str = ""
    tools: dict[int, tuple[str, str]] = field(default_factory=dict)  # index -> name, arguments
    finish: str = ""
    model: str = ""

    def add(self, document: Any) -> Completion:
        """Add an event of a stream, or a whole answer. Raises NoCompletion."""
        try:
            for choice in document["choices"]:
                self._choice(choice)
            if isinstance(name := document.get("model"), str):
                self.model = name
            _ = (
                document["choices"] or document["usage"]
            )  # the last event may have only token counts
        except MISSHAPEN:
            raise NoCompletion(_shown(document)) from None
        return self

    def _choice(self, choice: Any) -> None:
        self.finish = str(choice.get("finish_reason") or self.finish)
        self.logprobs += chosen_logprobs(choice.get("logprobs"))
        delta = choice.get("delta") or choice.get("message") or {}
        for call in delta.get("tool_calls") or ():
            index = call.get("index", 0)
            called = call["function"]
            name, arguments = self.tools.get(index, ("", ""))
            self.tools[index] = (
                name + (called.get("name") or ""),
                arguments + (called.get("arguments") or ""),
            )
        self.text += choice.get("text") or delta.get("content") or ""
        self.reasoning += delta.get("reasoning") or delta.get("reasoning_content") or ""


def read_events(
    chunks: Iterable[bytes], enough: Callable[[Completion], bool] = lambda _: False
) -> Completion:
    """The completion of a stream, read to its end or until it is ``enough``. Raises BrokenOff,
    NoCompletion.
    """
    completion = Completion()
    count = 0
    size = 0
    for data in _events(chunks):
        size += len(data)
        if size > LONGEST:
            raise NoCompletion(f"more than {LONGEST >> 20} MiB for a few tokens")
        if data == END:
            return completion
        try:
            document = read_json(data)
        except ValueError:
            raise NoCompletion(_shown(data)) from None
        if isinstance(document, dict) and "error" in document and "choices" not in document:
            raise BrokenOff(
                f"after {count} events the server sent an error: {error_text(document)}"
            )
        completion.add(document)
        count += 1
        if enough(completion):
            return completion
    if not completion.finish:
        raise BrokenOff(f"the connection was closed without {END} after {count} events")
    return completion


def error_text(document: Any) -> str:
    """The message in an error document, in any of the forms that servers use."""
    for key in ("error", "detail", "message"):
        if isinstance(document, dict) and key in document:
            document = document[key]
    return shorten(
        document if isinstance(document, str) else json.dumps(document, default=str), 160
    )


def _events(chunks: Iterable[bytes]) -> Iterator[str]:
    """The data of each complete event. Raises NoCompletion."""
    rest = b""
    data = []
    for chunk in chunks:
        rest += chunk
        if len(rest) > LONGEST:
            raise NoCompletion("an event of more than 1 MiB")
        # The second half of a CRLF may not have arrived yet.
        half = b"\r" if rest.endswith(b"\r") else b""
        whole = rest.removesuffix(half)
        *lines, rest = whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        rest += half
        for raw in lines:
            line = raw.decode("utf-8", "replace")
            if line.startswith("data:"):
                data.append(line[len("data:") :].removeprefix(" "))
                if data == [END]:  # some servers send no blank line after it
                    yield END
                    return
            elif not line and data:
                yield "\n".join(data)
                data = []


def chosen_logprobs(document: Any) -> Iterator[float]:
    """The log probabilities of the chosen tokens, from a completion's or a chat's ``logprobs``.

    Every token has one, as the prompt is not echoed. JSON has no NaN, so servers write null;
    whatever is not a number counts as NaN. vLLM writes -9999.0 for minus infinity.
    """
    if not isinstance(document, dict):
        return
    tokens = document.get("token_logprobs")
    content = document.get("content")
    values = list(tokens) if isinstance(tokens, list) else []
    if isinstance(content, list):
        values += [
            token["logprob"] for token in content if isinstance(token, dict) and "logprob" in token
        ]
    yield from map(log_probability, values)


def log_probability(value: Any) -> float:
    """A log probability as a number: NaN for what is none, minus infinity as vLLM writes it."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return math.nan
    try:
        number = float(value)
    except OverflowError:
        return math.inf
    except ValueError:
        return math.nan
    return -math.inf if number <= LOWEST else number


def _shown(document: Any) -> str:
    text = document if isinstance(document, str) else json.dumps(document, default=str)
    return visible(text[:_SHOWN])


def reason_of_request(error: OSError, timeout: float = 0) -> str:
    """Why a request has no answer. ``timeout``: its seconds; 0: they are no help."""
    import requests

    if isinstance(error, requests.Timeout):
        return f"no answer within {timeout:g} s" if timeout else "time-out"
    if isinstance(error, NotCarried):
        return str(error)
    if isinstance(error, (requests.ConnectionError, requests.exceptions.ChunkedEncodingError)):
        return "it refuses or closes connections"
    return type(error).__name__
