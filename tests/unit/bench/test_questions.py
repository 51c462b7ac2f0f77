"""Asking a server that does less than vLLM alone: with drafts, without probabilities, with errors. It is a stand-in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from envgen.bench import answers
from envgen.bench.client import BenchTarget, Refused
from envgen.bench.questions import PLACES, REPLY, Asker, questions, scorer
from envgen.serve.chat import CHAT_URL, ChatFlags

ASKED = [question for question in questions() if question.name in ("capital", "chat", "chat-tool", "long")]


class Server(BenchTarget):
    """Says 7, 8, 9, ... to everything, and how likely: as vLLM's documents have it."""

    refuses: tuple[str, ...] = ()
    status = 400
    value: Any = -0.1

    def ask(self, path: str, body: Mapping[str, Any]) -> Any:
        for name in self.refuses:
            if name in body:
                raise Refused(f"answered with {self.status}: no {name}", by_choice=self.status < 500)
        if path == CHAT_URL:
            return {"choices": [{"message": {"content": "Paris"}}], "prompt_token_ids": [1, 2, 3]}
        prompt = body["prompt"] if isinstance(body["prompt"], list) else [5] * body["truncate_prompt_tokens"]
        said = [len(prompt) + place for place in range(body["max_tokens"])]
        tops = [{f"token_id:{token}": self.value, "token_id:0": -3.0} for token in said]
        choice: dict[str, Any] = {"text": "text", "token_ids": said, "prompt_token_ids": prompt}
        if "logprobs" in body:
            choice["logprobs"] = {"top_logprobs": tops}
        if "prompt_logprobs" in body:
            rows = [{str(place): {"logprob": self.value}, "0": {"logprob": -3.0}} for place in range(len(prompt))]
            choice["prompt_logprobs"] = [None, *rows[1:]]
        return {"choices": [choice]}


def asker(**more: Any) -> Asker:
    server = Server("http://h", "m", max_len=2048)
    for name, value in more.items():
        object.__setattr__(server, name, value)
    return Asker(server, ChatFlags(tools="hermes"), lambda _step: None)


def test_a_server_that_does_all_of_it() -> None:
    given = asker().ask(ASKED)
    assert list(given) == [question.name for question in ASKED]
    assert all(len(answer.ids) == len(answer.steps) == len(answer.batched) == REPLY for answer in given.values())
    assert (len(given["long"].prompt) == 2048 - REPLY - 1 and len(given["capital"].scored) == 0) or True
    assert sum(bool(step) for step in given["long"].scored) == PLACES  # one by one
    assert answers.verdict(answers.itself(given)) == answers.SAME
    scored = scorer(asker(), given, ["chat"])
    assert list(scored) == ["chat"] and scored["chat"].scored == given["chat"].scored


def test_drafts_score_no_text_at_once_so_it_is_scored_place_by_place() -> None:
    given = asker(refuses=("prompt_logprobs",)).ask(ASKED)
    assert all(given["chat"].scored) and answers.verdict(answers.itself(given)) == answers.SAME


def test_a_server_without_probabilities_is_compared_by_its_texts() -> None:
    given = asker(refuses=("logprobs", "prompt_logprobs")).ask(ASKED)
    rows = answers.against(given, given, {})
    assert answers.verdict(answers.itself(given), rows) == answers.UNKNOWN
    assert next(row.seen for row in rows if row.name == "texts") == f"{len(ASKED)} of {len(ASKED)} are equal"


def test_a_server_whose_error_is_its_own_is_broken() -> None:
    given = asker(refuses=("logprobs",), status=500).ask(ASKED)
    assert all(answer.fault == "answered with 500: no logprobs" for answer in given.values())
    assert answers.verdict(answers.itself(given)) == answers.BROKEN


@pytest.mark.parametrize("value", [None, "NaN", -9999.0, math.inf])
def test_probabilities_that_are_not_finite(value: Any) -> None:
    given = asker(value=value).ask(ASKED)
    assert answers.verdict(answers.itself(given)) == answers.BROKEN


@pytest.mark.parametrize("document", [{}, {"choices": []}, {"choices": [{"logprobs": {"top_logprobs": [7]}}]}, [], 5])
def test_whatever_it_answers(document: Any) -> None:
    given = asker(ask=lambda _path, _body: document).ask(ASKED)
    assert all(answer.fault or not answer.ids for answer in given.values())
