"""Is a server ready? It lists the model, completes a prompt, and answers a chat and a tool call if
it supports them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from envgen.binding import JsonObject
from envgen.serve import chat
from envgen.serve.chat import ChatFlags, Verdict
from envgen.serve.events import (
    BrokenOff,
    Completion,
    NoCompletion,
    document_of,
    error_text,
    read_events,
    reason_of_request,
    responding,
    short_answer,
)
from envgen.text import visible

PROMPT = "The capital of France is"
MAX_TOKENS = 12
NO_PROMPTS = (400, 404, 405, 422, 501)  # answers of a model that embeds, ranks or transcribes
POOLS = "a model that embeds, ranks or classifies completes no prompt"
BUSY = (429, 503)
ENOUGH = 80  # characters of a chat's answer that are read


@dataclass(frozen=True)
class Question:
    """A prompt for a model, and the text that the answer must contain (None: any). ``chat``: ask a
    chat too.

    ``model`` None: the first that the server lists. ``prompt`` None: it completes none, and is
    listed.
    """

    model: str | None
    prompt: str | None = PROMPT
    expect_text: str | None = None
    api_key: str = field(default="", repr=False)
    chat: ChatFlags | None = None


@dataclass(frozen=True)
class Readiness:
    """The service's answer. While ``ready`` is False, ``why`` is what is still missing.

    ``unasked``: why nothing could be asked; "" where a prompt was completed.
    """

    ready: bool
    why: str = ""
    text: str = ""
    fatal: bool = False  # the service runs and is wrong: waiting can't help
    refused: bool = False  # a wrong answer: not fatal unless it is repeated
    first_token: float = 0.0  # seconds
    chats: Mapping[str, Verdict] = field(
        default_factory=dict
    )  # of "chat" and "tool call", as far as asked
    unasked: str = ""


@dataclass(frozen=True)
class _Server:
    url: str
    headers: Mapping[str, str]
    timeout: float
    on_step: Callable[[str], None]
    names: frozenset[str] = frozenset()  # of the model, in its answers; empty: any

    def named(self, completion: Completion, what: str) -> str:
        """What is wrong if ``completion`` names another model."""
        if not self.names or completion.model in ("", *self.names):
            return ""
        names = sorted(self.names)[:8]
        wanted = " or ".join(visible(name[:80]) for name in names)
        return f"{what} was answered by the model {visible(completion.model[:80])}, not {wanted}"

    def post(
        self,
        path: str,
        body: JsonObject,
        what: str,
        enough: Callable[[Completion], bool] = lambda _: False,
    ) -> tuple[int, Any, float]:
        """Status, Completion or document, and the seconds to the first byte. Raises _Unanswered."""
        first = 0.0
        began = time.monotonic()

        def watched(chunks: Iterator[bytes]) -> Iterator[bytes]:
            nonlocal first
            for chunk in chunks:
                first = first or time.monotonic() - began
                self.on_step(f"the rest of {what}")
                yield chunk

        try:
            with responding(
                "POST", f"{self.url}{path}", self.headers, (10, self.timeout), json=body
            ) as response:
                streams = response.headers.get("Content-Type", "").startswith("text/event-stream")
                if response.status_code == 200 and streams:
                    return (
                        200,
                        read_events(watched(response.iter_content(chunk_size=None)), enough),
                        first,
                    )
                return response.status_code, document_of(response), first
        except OSError as error:
            how = "broke off in the middle" if first else "did not come"
            raise _not_ready(
                f"{what} {how} ({reason_of_request(error)})", refused=bool(first)
            ) from None
        except BrokenOff as error:
            raise _not_ready(f"{what} broke off in the middle: {error}", refused=True) from None
        except NoCompletion as error:
            raise _not_ready(f"{what} is not a completion: {error}", fatal=True) from None


_Rows = Mapping[str, JsonObject]  # of /v1/models, by name


class _Judged(Exception):
    """Ends the questions: the answer is known."""

    def __init__(self, answer: Readiness) -> None:
        super().__init__(answer.why)
        self.answer = answer


def _not_ready(why: str, *, fatal: bool = False, refused: bool = False) -> _Judged:
    return _Judged(Readiness(False, why, fatal=fatal, refused=refused))


def ask(
    base_url: str,
    question: Question,
    *,
    timeout: float = 120,
    on_step: Callable[[str], None] = lambda _: None,
) -> Readiness:
    """Ask ``base_url`` (http://host:port) once: /v1/models, a completion and, with
    ``question.chat``, chats.

    ``timeout``: seconds without data; the first prompt may compile kernels. ``on_step`` gets what
    is being waited for.
    Never raises for what the service does.
    """
    headers = {"Authorization": f"Bearer {question.api_key}"} if question.api_key else {}
    try:
        on_step("/v1/models")
        rows = _listed(base_url, question.model, headers)
        if question.prompt is None:
            return Readiness(True, unasked=POOLS)
        model = next(iter(rows)) if question.model is None else question.model
        server = _Server(base_url, headers, timeout, on_step, names_of(rows, question.model))
        answer = _complete(server, model, question)
        if answer.ready and question.chat is not None:
            answer = _chat(server, model, chat.context_length(rows[model]), question.chat, answer)
    except _Judged as judged:
        answer = judged.answer
    if answer.ready and answer.unasked and question.expect_text is not None:
        return Readiness(False, f"ready.expect_text can't be checked: {answer.unasked}", fatal=True)
    return answer


def names_of(rows: _Rows, model: str | None) -> frozenset[str]:
    """The names under which a server may answer for ``model``: of several --served-model-name, vLLM
    gives the first.
    """
    if model is None:
        return frozenset()
    root = rows[model].get("root")
    return frozenset(name for name, row in rows.items() if row.get("root") == root)


def _listed(base_url: str, model: str | None, headers: Mapping[str, str]) -> _Rows:
    """The rows of /v1/models, with ``model`` among them. Without a model, a server that lists none
    may be right.

    Only an answer counts, not a connection: Docker's proxy accepts those to a published port before
    the program in the container listens.
    """
    try:
        status, document = short_answer("GET", f"{base_url}/v1/models", headers, 10)
    except OSError as error:
        raise _not_ready(f"{base_url} does not answer yet ({error})") from None
    rows = models(document) if status == 200 else None
    reason = f"/v1/models answers {status}"
    if status in (401, 403):
        reason += (
            ": it needs an API key; write `secrets: [VLLM_API_KEY]` and export it in your shell"
        )
    elif rows is not None:
        reason = "/v1/models lists no model"
    elif status == 200:
        reason += " with something that is not a list of models"
    if model is None and not rows:
        if status >= 500 and status != 501:
            raise _not_ready(reason)
        raise _Judged(Readiness(True, unasked=reason))
    if rows is None:
        raise _not_ready(reason, fatal=status in (401, 403), refused=status == 200)
    if model is not None and model not in rows:
        raise _not_ready(listing(list(rows), model), fatal=bool(rows))
    return rows


def listing(names: Sequence[str], model: str) -> str:
    """The sentence about a /v1/models without ``model``."""
    shown = ", ".join(visible(name[:80]) for name in names[:8])
    if len(names) > 8:
        shown += " ..."
    return f"/v1/models lists {shown or 'nothing'}, not {model}"


def models(document: Any) -> dict[str, JsonObject] | None:
    """The rows of a list of models, by name; None for anything else."""
    data = document.get("data") if isinstance(document, dict) else None
    if not isinstance(data, list):
        return None
    return {str(row["id"]): row for row in data if isinstance(row, dict) and "id" in row}


def _complete(server: _Server, model: str, question: Question) -> Readiness:
    body = {
        "model": model,
        "prompt": question.prompt,
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "logprobs": 1,
        "stream": True,
    }
    server.on_step("its first token")
    status, answered, first = server.post("/v1/completions", body, "the answer to the first prompt")
    if question.model is None and status in NO_PROMPTS:
        why = f"{visible(model[:80])} takes no prompts (/v1/completions answers {status})"
        raise _Judged(Readiness(True, unasked=why))
    answer = judge(
        status,
        answered,
        question.expect_text,
        lambda reply: server.named(reply, "the first prompt"),
    )
    if status in NO_PROMPTS:
        why = f"{answer.why}; if it embeds, ranks or classifies, write `args: {{runner: pooling}}`"
        return replace(answer, why=why)
    return replace(answer, first_token=first)


def _chat(
    server: _Server, model: str, context: int | None, flags: ChatFlags, answer: Readiness
) -> Readiness:
    """``answer`` with the verdicts on a chat and, if the service supports them, a tool call."""
    verdicts = {}
    for name in ("chat", "tool call") if flags.tools else ("chat",):
        tool = name == "tool call"
        server.on_step(f"the answer to its first {name}")
        body = chat.body(model, context, flags, tool=tool)
        # A tool call is read to its end, a chat only as far as needed.
        enough = (lambda _: False) if tool else (lambda reply: len(reply.text) >= ENOUGH)
        status, reply, _ = server.post(
            chat.CHAT_URL, body, f"the answer to the first {name}", enough
        )
        if status in BUSY:
            raise _not_ready(_answered(f"the first {name}", status, reply))
        if status != 200:
            verdicts[name] = chat.refused(status, visible(error_text(reply)), flags)
        else:
            try:
                whole = reply if isinstance(reply, Completion) else Completion().add(reply)
            except NoCompletion as error:
                raise _not_ready(
                    f"the answer to the first {name} is not a completion: {error}", fatal=True
                ) from None
            if wrong := server.named(whole, f"the first {name}"):
                raise _not_ready(wrong, fatal=True)
            verdicts[name] = (chat.judge_call if tool else chat.judge_chat)(whole, flags)
        good, reason = verdicts[name]
        if good is False:
            why = f"it completes a prompt, but the first {name} failed: {reason}"
            raise _not_ready(why, fatal=status < 500, refused=True)
        if good is None and status != 200:
            break  # no chats, so no tool calls
    return replace(answer, chats=verdicts)


def _answered(what: str, status: int, document: Any) -> str:
    return f"{what} was answered with {status}: {visible(str(document)[:200])}"


def judge(
    status: int,
    document: Any,
    expect_text: str | None = None,
    wrong: Callable[[Completion], str] = lambda _: "",
) -> Readiness:
    """Judge the answer to a completion request: status 200, a non-empty text, finite log
    probabilities.

    ``document``: JSON, or a Completion that was read from a stream. ``wrong``: what else is wrong
    with it, or "".
    """
    if status != 200:
        why = _answered("the first prompt", status, document)
        busy = status in BUSY
        return Readiness(False, why, fatal=400 <= status < 500 and not busy, refused=not busy)
    try:
        reply = document if isinstance(document, Completion) else Completion().add(document)
    except NoCompletion as error:
        return Readiness(
            False, f"the answer to the first prompt is not a completion: {error}", fatal=True
        )
    if why := wrong(reply):
        return Readiness(False, why, fatal=True)
    text = reply.text
    if not text:
        return Readiness(False, "the first prompt was answered with an empty text", fatal=True)
    bad = next((value for value in reply.logprobs if not math.isfinite(value)), None)
    if bad is not None:
        return Readiness(
            False,
            f"the first completion has a NaN or infinite log probability ({bad:g})",
            fatal=True,
        )
    if expect_text is not None and expect_text not in text:
        why = f"the first prompt was completed with {visible(text)!r}, which does not contain {expect_text!r}"
        return Readiness(False, why, text=visible(text), fatal=True)
    return Readiness(True, text=visible(text))
