"""Server-sent events, and the completion that they or one JSON document hold. The one reader of both; pure."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import requests

from envgen.engine.base import read_json
from envgen.text import visible

LARGEST = 1 << 20  # bytes; the list of a thousand models has a fifth of it
_SHOWN = 200  # characters of what is not JSON


def short_answer(method: str, url: str, headers: Mapping[str, str], timeout: float) -> tuple[int, Any]:
    """Status and document. OSError with a reason in plain words when there is no answer."""
    try:
        with requests.Session() as session:
            session.trust_env = False  # no proxy between us and a server
            response = session.request(method, url, headers=headers, timeout=timeout, stream=True,
                                       allow_redirects=False)  # fmt: skip
            return response.status_code, document_of(response)
    except requests.Timeout:
        raise OSError(f"no answer within {timeout:g} s") from None
    except requests.ConnectionError:
        raise OSError("it refuses connections, or closes them") from None
    except requests.RequestException as error:
        raise OSError(f"{type(error).__name__}: {error}") from None


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


@dataclass(frozen=True)
class Completion:
    """A text and the log probability of each of its tokens."""

    text: str = ""
    logprobs: tuple[float, ...] = ()
    events: int = 1

    @classmethod
    def of(cls, document: Any) -> Completion:
        """From one JSON document: a whole completion or one part of a stream. Raises NoCompletion."""
        try:
            choices = document["choices"]
            if not choices and "usage" in document:  # the last part of a stream may hold nothing but figures
                return cls()
            text = choices[0]["text"]
            logprobs = tuple(chosen_logprobs(choices[0].get("logprobs")))
        except (KeyError, IndexError, TypeError, AttributeError):
            raise NoCompletion(_shown(document)) from None
        if text is not None and not isinstance(text, str):
            raise NoCompletion(_shown(document))
        return cls(text or "", logprobs)


def read_events(chunks: Iterable[bytes]) -> Completion:
    """The completion of a whole stream. Raises BrokenOff without its end, NoCompletion for what is not part of one."""
    text: list[str] = []
    logprobs: list[float] = []
    count = size = 0
    for data in payloads(chunks):
        size += len(data)
        if size > LONGEST:
            raise NoCompletion("more than 1 MiB for a few tokens")
        if data == END:
            return Completion("".join(text), tuple(logprobs), count)
        try:
            document = read_json(data)
        except ValueError:
            raise NoCompletion(_shown(data)) from None
        if isinstance(document, dict) and "error" in document and "choices" not in document:
            raise BrokenOff(f"after {count} events the server sent {_shown(document['error'])}")
        part = Completion.of(document)
        count += 1
        text.append(part.text)
        logprobs += part.logprobs
    raise BrokenOff(f"{count} events came, and the connection was closed without {END}")


def payloads(chunks: Iterable[bytes]) -> Iterator[str]:
    """The data of each whole event, wherever the chunks are cut. Half an event at the end is left out."""
    return (data for _, data in stamped((0.0, chunk) for chunk in chunks))


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
