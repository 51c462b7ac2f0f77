"""What counts as an answer."""

from __future__ import annotations

from typing import Any

import pytest

from envgen.serve.readiness import judge


def completion(text: Any = "Paris", logprobs: Any = None) -> dict[str, Any]:
    return {"choices": [{"text": text, "logprobs": logprobs}]}


def test_a_completion() -> None:
    answer = judge(200, completion(" Paris\n\x1b[31m", {"token_logprobs": [-0.5, 0, -1.0]}))
    assert answer.ready and answer.text == " Paris\\n\\x1b[31m"


@pytest.mark.parametrize(
    ("status", "document", "why", "fatal"),
    [
        (500, {"error": "boom"}, "answered with 500", False),
        (503, "", "answered with 503", False),
        (404, {"message": "no such model"}, "no such model", True),
        (200, completion(""), "empty text", True),
        (200, completion(None), "empty text", True),
        (200, {}, "not a completion", True),
        (200, {"choices": []}, "not a completion", True),
        (200, "<html>", "not a completion", True),
        (200, completion("!!!", {"token_logprobs": [float("nan")]}), "NaN", True),
        (200, completion("!!!", {"token_logprobs": [float("-inf")]}), "infinite", True),
        (200, completion("!!!", {"token_logprobs": [None]}), "infinite log probability (nan)", True),
        (429, "", "answered with 429", False),
    ],
)
def test_what_is_no_answer(status: int, document: Any, why: str, fatal: bool) -> None:
    answer = judge(status, document)
    assert not answer.ready and why in answer.why and answer.fatal is fatal
