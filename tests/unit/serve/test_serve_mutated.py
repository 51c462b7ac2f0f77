"""Random answers of a server: models, completions, streams, errors. Each is read or refused in a sentence.

NaN, Infinity, numbers of hundreds of digits, documents of thousands of levels. ENVGEN_EXAMPLES says how many; the full
fuzz is 10,000.
"""

from __future__ import annotations

import itertools
import json
import os
import unicodedata
from typing import Any

import pytest
import requests
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from mutated import CHANGES, Changes, mutated

from envgen.bench import client
from envgen.errors import ServiceError
from envgen.serve import chat, readiness
from envgen.serve.events import BrokenOff, NoCompletion, document_of, error_text, read_events

EXAMPLES = settings(
    max_examples=int(os.environ.get("ENVGEN_EXAMPLES", "10")),
    suppress_health_check=list(HealthCheck),
    deadline=None,
)
MODELS = {"object": "list", "data": [{"id": "tiny", "max_model_len": 512, "root": "/m", "meta": {"n_ctx_train": 4}}]}
LOGPROBS = {"token_logprobs": [-0.5, None], "tokens": ["a", "b"], "top_logprobs": [{"a": -0.5}]}
COMPLETION = {"choices": [{"text": " Paris", "logprobs": LOGPROBS, "finish_reason": None}]}
CHAT = {"choices": [{"delta": {"content": "hm"}, "logprobs": {"content": [{"logprob": -1.5}]}}], "id": "x"}
USAGE = {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 2,
                                  "prompt_tokens_details": {"cached_tokens": 1}}}  # fmt: skip
ERROR = {"error": {"message": "the model does not exist", "code": 404}, "detail": [{"msg": "x"}]}
DEEP = st.sampled_from([100, 900, 990, 5000, 100_000])


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """The bytes of one document, with what JSON itself may hold that no server should send."""
    document = draw(st.sampled_from([MODELS, COMPLETION, CHAT, USAGE, ERROR]))
    changes: Changes = draw(CHANGES)
    text = json.dumps(mutated(document, changes))
    odd = draw(st.sampled_from(["", "", "1e999", "-1e999", "NaN", "-Infinity", "9" * 400, "9" * 5000, "deep"]))
    if odd == "deep":
        levels = draw(DEEP)
        odd = "[" * levels + "]" * levels if draw(st.booleans()) else '{"a":' * levels
    for number in ("-0.5", "512", "4", '" Paris"'):
        if odd and draw(st.booleans()):
            text = text.replace(number, odd)
    return text.encode() if draw(st.booleans()) else text.encode()[: draw(st.integers(0, len(text)))]


def clean(text: str) -> None:
    """A sentence that may be printed."""
    assert isinstance(text, str)
    assert not [c for c in text if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") and c not in "\n\t"], repr(text)


@EXAMPLES
@given(body=bodies(), status=st.sampled_from([200, 400, 404, 429, 500, 503]))
@example(body=b"[" * 100_000, status=200)
@example(body=b'{"choices":[{"text":"x","logprobs":{"token_logprobs":[' + b"9" * 400 + b"]}}]}", status=200)
def test_documents(body: bytes, status: int) -> None:
    document = document_of(body)
    for name in readiness.models(document) or ():
        clean(readiness.listing([name], "tiny"))
    for expected in (None, "Paris"):
        answer = readiness.judge(status, document, expected)
        clean(answer.why)
        clean(answer.text)
        assert answer.ready or answer.why
    text = body.decode(errors="replace")
    clean(error_text(text))
    try:
        models = client.listed_models("http://h", status, text)
    except ServiceError as error:
        clean(str(error))
    else:
        limits = [chat.context_length(one) for one in models.values()]
        assert all(limit is None or 0 < limit < 1 << 53 for limit in limits)


@EXAMPLES
@given(parts=st.lists(bodies(), max_size=4), ends=st.booleans())
@example(parts=[b"[" * 100_000], ends=True)
@example(parts=[b'{"choices":[],"usage":{"prompt_tokens":' + b"9" * 400 + b"}}"], ends=True)
def test_streams(parts: list[bytes], ends: bool) -> None:
    data = b"".join(b"data: " + part + b"\n\n" for part in parts) + (b"data: [DONE]\n\n" if ends else b"")
    try:
        completion = read_events([data])
        clean(readiness.judge(200, completion).why)
        clean(chat.judge_chat(completion, chat.ChatFlags())[1])
        clean(chat.judge_call(completion, chat.ChatFlags())[1])
    except (BrokenOff, NoCompletion) as error:
        clean(str(error))


def test_a_stream_has_an_end() -> None:
    with pytest.raises(NoCompletion, match="more than 1 MiB"):
        read_events(itertools.repeat(b"data: " + json.dumps(COMPLETION).encode() + b"\n\n"))


def test_a_body_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that never stops is read no further than a document of its kind can be."""
    taken = 0

    class Endless:
        def stream(self, size: int, **_: Any) -> Any:
            nonlocal taken
            while True:
                taken += size
                yield b" " * size

        def close(self) -> None:
            pass

    response = requests.Response()
    response.raw = Endless()
    assert document_of(response) == ""
    assert taken <= 2 << 20
