"""A server that is measured: its address and model, and requests to it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

from envgen.bench.answers import REFUSED
from envgen.binding import JsonObject
from envgen.engine.process import in_background
from envgen.engine.values import read_json
from envgen.errors import ServiceError, UsageError
from envgen.serve.chat import context_length
from envgen.serve.events import answered, document_of, error_text, short_answer
from envgen.serve.readiness import models, names_of
from envgen.text import shorten, visible

COMPLETIONS = "/v1/completions"
LARGEST = 64 << 20  # bytes of a reply
_TEXT = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work night point home water room mother area money story "
    "fact month lot right study book eye job word business issue side kind head house service friend father power hour"
)
WORDS = _TEXT.split()


class ServerGone(ServiceError):
    """The server gave no answer."""


class Refused(Exception):
    """The server answered, and not with what was asked for. ``by_choice``: it does not do this
    (status 400 to 499).
    """

    def __init__(self, why: str, *, by_choice: bool = False) -> None:
        super().__init__(why)
        self.by_choice = by_choice

    @property
    def fault(self) -> str:
        """As an answer of `envgen answers` has it."""
        return f"{REFUSED if self.by_choice else ''}{self}"


@dataclass(frozen=True)
class BenchTarget:
    """A server. ``root``: the model's folder or name; ``max_len``: its context in tokens (None:
    unknown).

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

    def ask(self, path: str, body: JsonObject) -> Any:
        """The document that answers ``body``. Refused with the reason; ServerGone without an
        answer.
        """
        given = {"model": self.model, "temperature": 0, **body}
        try:
            status, content = answered(
                "POST", self.url + path, self.headers, self.silence, json=given, largest=LARGEST
            )
        except OSError as error:
            raise ServerGone(f"{self.url}{path}: {error}") from None
        if status != 200:
            why = f"answered with {status}: {visible(error_text(document_of(content)))}"
            raise Refused(why, by_choice=400 <= status < 500)
        try:
            document = read_json(content)
        except ValueError:
            start = shorten(content[:2000].decode("utf-8", "replace"), 160)
            raise Refused(f"the reply is not JSON: {visible(start) or '(empty)'}") from None
        name = document.get("model") if isinstance(document, dict) else None
        if self.names and isinstance(name, str) and name not in self.names:
            raise Refused(
                f"answered by the model {visible(name[:80])}, not {visible(self.model[:80])}"
            )
        return document


def find(
    url: str, *, model: str | None, key: str, silence: float, expected: str | None = None
) -> BenchTarget:
    """The server at ``url`` and its model: ``model``, which the user names, or ``expected``, which
    the profile names.

    ServiceError if it is not an OpenAI-compatible server or serves another model than the profile
    says, UsageError if it doesn't have ``model``.
    """
    parts = urlsplit(url)
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or any(c in url for c in " \r\n\t")
    ):
        raise UsageError(
            f"{url!r} is not the address of a server", hint="it looks like http://127.0.0.1:8000"
        )
    if any(not 33 <= ord(c) <= 126 for c in key):
        raise UsageError("the API key has a character that is invalid in an HTTP header")
    target = BenchTarget(url.rstrip("/"), model or "", key=key, silence=silence)
    try:
        answer = short_answer("GET", f"{target.url}/v1/models", target.headers, min(silence, 30))
    except OSError as error:
        hint = "`envgen up serve` starts a service and waits for it"
        raise ServiceError(f"{target.url} is not ready: {error}", hint=hint) from None
    listed = listed_models(target.url, *answer)
    names = ", ".join(list(listed)[:8]) or "no model"
    choice = f"--model {next(iter(listed), 'NAME')}"
    name = model or expected
    if name is None and len(listed) == 1:
        (name,) = listed
    if name is None:
        raise UsageError(f"{target.url} has {names}", hint=f"choose one: {choice}")
    if name not in listed and model:
        what = f"{target.url} has no model {model!r}; it has: {names}"
        raise UsageError(what, hint=f"choose one: {choice}")
    if name not in listed:
        hint = f"`envgen up` names what differs; to measure it as it is: {choice}"
        what = f"{target.url} serves {names}, not {expected}, as the profile says"
        raise ServiceError(what, hint=hint)
    root = str(listed[name].get("root") or "")
    length = context_length(listed[name])
    return BenchTarget(target.url, name, root, length, key, silence, names_of(listed, name))


def listed_models(url: str, status: int, document: Any) -> dict[str, JsonObject]:
    """The rows of /v1/models, by name. ServiceError if that is not a list of models."""
    if status in (401, 403):
        raise UsageError(
            f"{url} needs an API key", hint="export it, and name the variable: --api-key-env NAME"
        )
    rows = models(document) if status == 200 else None
    if rows is not None:
        return rows
    start = shorten(document if isinstance(document, str) else json.dumps(document), 80)
    raise ServiceError(
        f"{url} is not an OpenAI-compatible server: /v1/models answers {status}: {start or '(nothing)'}",
        hint="use the server's address without /v1",
    )


def tokens(count: int) -> list[int]:
    """A random prompt of ``count`` tokens, so that no prefix cache has it.

    In current vocabularies these ids are single bytes, after a few special tokens.
    """
    return random.choices(range(20, 200), k=count)


Item = TypeVar("Item")
Answer = TypeVar("Answer")


def together(ask: Callable[[Item], Answer], items: Iterable[Item]) -> list[Answer]:
    """``ask`` all of ``items`` at once; the first error is raised. Ctrl-C does not wait for what is
    still asked.
    """
    answers = [in_background(partial(ask, item)) for item in items]
    return [answer.result() for answer in answers]
