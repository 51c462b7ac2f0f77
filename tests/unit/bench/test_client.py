"""A request to a server, whatever it answers: a document, or a reason in one line."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.bench import client
from envgen.bench.client import COMPLETIONS, BenchTarget, Refused
from envgen.text import visible

GOOD = json.dumps({"model": "tiny", "choices": []}).encode()


def asked(status: int, body: bytes, **target: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "answered", lambda *_args, **_more: (status, body))
        return BenchTarget("http://h", "tiny", **target).ask(COMPLETIONS, {})


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (500, b'{"error": {"message": "EngineCore died"}}', "answered with 500: EngineCore died"),
        (500, b"{half", "answered with 500: {half"),
        (200, b"<html>Bad gateway</html>", "the reply is not JSON: <html>Bad gateway</html>"),
        (200, b"", "the reply is not JSON: (empty)"),
        (200, b'{"model": "another"}', "answered by the model another, not tiny"),
    ],
)
def test_what_is_no_answer(status: int, body: bytes, why: str) -> None:
    with pytest.raises(Refused) as refused:
        asked(status, body, names=frozenset(["tiny"]))
    assert str(refused.value) == why
    assert asked(200, GOOD, names=frozenset(["tiny"])) == json.loads(GOOD)


@given(st.sampled_from([200, 404, 500]), st.binary(max_size=80))
def test_any_bytes_give_a_document_or_a_line(status: int, body: bytes) -> None:
    try:
        asked(status, body, names=frozenset(["tiny"]))
    except Refused as error:
        assert str(error) == visible(str(error))  # a letter of private use stays
