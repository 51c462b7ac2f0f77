"""A completion from what a server sends: one JSON document, or a stream of server-sent events. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from envgen.text import visible

END = "[DONE]"
LONGEST = 1 << 20  # bytes; a longer event is no token of a completion


class BrokenOff(Exception):
    """The stream ended before it said that it does."""


class NoCompletion(Exception):
    """What came is not a part of a completion; the text is what it looks like."""


@dataclass(frozen=True)
class Completion:
    """A text and the log probability of each of its tokens (None: the server had none to give)."""

    text: str = ""
    logprobs: tuple[float | None, ...] = ()
    events: int = 1

    @classmethod
    def of(cls, document: Any) -> Completion:
        """From one JSON document: a whole completion or one part of a stream. Raises NoCompletion."""
        try:
            choices = document["choices"]
            if not choices and "usage" in document:  # the last part of a stream may hold nothing but figures
                return cls()
            text = choices[0]["text"]
            logprobs = ((choices[0].get("logprobs") or {}).get("token_logprobs")) or ()
        except (KeyError, IndexError, TypeError, AttributeError):
            raise NoCompletion(_shown(document)) from None
        numbers = tuple(value if isinstance(value, (int, float)) else None for value in logprobs)
        if text is not None and not isinstance(text, str):
            raise NoCompletion(_shown(document))
        return cls(text or "", numbers)


def read_events(chunks: Iterable[bytes]) -> Completion:
    """The completion of a whole stream. Raises BrokenOff without its end, NoCompletion for what is no part of one."""
    text: list[str] = []
    logprobs: list[float | None] = []
    count = 0
    for data in payloads(chunks):
        if data == END:
            return Completion("".join(text), tuple(logprobs), count)
        try:
            document = json.loads(data)
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
    rest = b""
    data: list[str] = []
    for chunk in chunks:
        rest += chunk
        if len(rest) > LONGEST:
            raise NoCompletion("an event of more than 1 MiB")
        *lines, rest = rest.split(b"\n")
        for raw in lines:
            line = raw.decode("utf-8", "replace").removesuffix("\r")
            if line.startswith("data:"):
                data.append(line[len("data:") :].removeprefix(" "))
                if data == [END]:  # not every server ends its last event
                    yield END
                    return
            elif not line and data:
                yield "\n".join(data)
                data = []


def _shown(document: Any) -> str:
    text = document if isinstance(document, str) else json.dumps(document, default=str)
    return visible(text[:200])
