"""What a server's answers mean, each status by itself: the list of models, a prompt, another task, a chat."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from envgen.serve import readiness
from envgen.serve.chat import ChatFlags
from envgen.serve.events import Completion
from envgen.serve.readiness import Question, Readiness, ask

LIST = {"data": [{"id": "tiny", "root": "/m"}, {"id": "alias", "root": "/m"}, {"id": "other"}]}
GOOD = (200, Completion("Paris"))
NONE = (404, {"error": "no such path"})
Answers = Mapping[str, tuple[int, Any]]


def asked(
    monkeypatch: pytest.MonkeyPatch, question: Question, answers: Answers, models: Any = (200, LIST)
) -> Readiness:
    def post(_self: Any, path: str, *_rest: Any) -> tuple[int, Any, float]:
        assert _rest[0].get("temperature", 0) == 0  # the same answer each time
        return (*answers.get(path, NONE), 0.5)

    monkeypatch.setattr(readiness, "short_answer", lambda *_: models)
    monkeypatch.setattr(readiness._Server, "post", post)
    return ask("http://127.0.0.1:1", question)


KEY = "/v1/models answers {}: it needs an API key; write `secrets: [VLLM_API_KEY]` and export it in your shell"
# status, document, what is said -> without a model: whether it is ready; with one: whether waiting is useless, and counts
MODELS: list[tuple[int, Any, str, bool, bool, bool]] = [
    (200, "<html>", "/v1/models answers 200 with something that is not a list of models", True, False, True),
    (200, {"data": []}, "/v1/models lists no", True, False, False),
    (401, "", KEY.format(401), True, True, False),
    (403, "", KEY.format(403), True, True, False),
    *((status, "", f"/v1/models answers {status}", True, False, False) for status in (404, 499, 501)),
    *((status, "", f"/v1/models answers {status}", False, False, False) for status in (500, 502)),
]


@pytest.mark.parametrize(("status", "document", "words", "ready", "fatal", "refused"), MODELS)
def test_a_list_of_models(
    monkeypatch: pytest.MonkeyPatch, status: int, document: Any, words: str, ready: bool, fatal: bool, refused: bool
) -> None:
    found = asked(monkeypatch, Question(None), {}, (status, document))
    assert (found.ready, found.fatal, found.refused) == (ready, False, False)
    assert words in (found.unasked if ready else found.why)
    expecting = asked(monkeypatch, Question(None, expect_text="Paris"), {}, (status, document))
    assert not expecting.ready and expecting.fatal is ready and words in expecting.why
    found = asked(monkeypatch, Question("tiny"), {}, (status, document))
    assert (found.ready, found.unasked, found.fatal, found.refused) == (False, "", fatal, refused)


def test_a_model_that_takes_no_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    found = asked(monkeypatch, Question(None), {})
    assert found.ready and found.unasked == "tiny takes no prompts (/v1/completions answers 404)"
    found = asked(monkeypatch, Question("tiny", chat=ChatFlags()), {})
    assert not found.ready and found.fatal and found.refused
    assert found.why.endswith("; if it embeds, ranks or classifies, write `args: {runner: pooling}`")
    found = asked(monkeypatch, Question("tiny", None, chat=ChatFlags()), {})
    assert found.ready and found.unasked == readiness.POOLS and not found.chats
    assert asked(monkeypatch, Question("gone", None), {}).fatal  # it must be listed, too


@pytest.mark.parametrize(
    ("stream", "why", "fatal"),
    [(b'data: {"choices": 7}\n\n', "is not a completion", True), (b"data: {", "broke off in the middle", False)],
)
def test_a_stream_that_is_no_completion(monkeypatch: pytest.MonkeyPatch, stream: bytes, why: str, fatal: bool) -> None:
    head = {"Content-Type": "text/event-stream"}
    response = SimpleNamespace(status_code=200, headers=head, iter_content=lambda **_: [stream])
    monkeypatch.setattr(readiness, "short_answer", lambda *_: (200, LIST))
    monkeypatch.setattr(readiness, "responding", lambda *_, **__: contextlib.nullcontext(response))
    found = ask("http://127.0.0.1:1", Question("tiny"))
    assert why in found.why and (found.ready, found.fatal, found.refused) == (False, fatal, not fatal)


@pytest.mark.parametrize(
    ("model", "by", "wrong"),
    [("tiny", "alias", ""), ("tiny", "", ""), (None, "x", ""), ("tiny", "other", "other, not alias or tiny")],
)
def test_who_answers(monkeypatch: pytest.MonkeyPatch, model: str | None, by: str, wrong: str) -> None:
    answers = {"/v1/completions": (200, Completion("Paris", model=by))}
    found = asked(monkeypatch, Question(model), answers)
    assert (found.ready, found.fatal, found.why.endswith(wrong)) == (not wrong, bool(wrong), True)
    assert asked(monkeypatch, Question("gone"), answers).fatal


@pytest.mark.parametrize(
    ("status", "fatal", "refused"),
    [(400, True, True), (418, True, True), (429, False, False), (500, False, True), (503, False, False)],
)
def test_a_prompt_or_a_chat_that_is_refused(
    monkeypatch: pytest.MonkeyPatch, status: int, fatal: bool, refused: bool
) -> None:
    chats = {"/v1/completions": GOOD, "/v1/chat/completions": (status, "x")}
    found = asked(monkeypatch, Question("tiny"), {"/v1/completions": (status, "x")})
    for answer in (found, asked(monkeypatch, Question(None, chat=ChatFlags(tools="hermes")), chats)):
        assert (answer.ready, answer.fatal, answer.refused) == (False, fatal, refused)


def test_arguments_come_in_pieces_and_a_name_once() -> None:
    whole = Completion()
    for name, arguments in (("f", None), (None, "{"), (None, "}"), (None, None)):
        call = {"index": 0, "function": {"name": name, "arguments": arguments}}
        whole.add({"choices": [{"delta": {"tool_calls": [call]}}]})
    assert whole.tools == {0: ("f", "{}")}
