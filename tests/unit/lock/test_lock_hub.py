"""What the model hub answers: a commit, a size, or why there is none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from envgen.engine.web import Reply
from envgen.errors import LockError
from envgen.lock import servers
from envgen.profile.service import ModelRef

MODEL = ModelRef("a/m", "main", ignore=("*.bin",))
FILES = [{"rfilename": "a.bin", "size": 5}, {"rfilename": "b", "size": 7}, {"rfilename": "c", "size": -1}, 3, {}]


@pytest.mark.parametrize(
    ("status", "token", "words", "hint"),
    [
        (200, "", "", ""),
        (401, "", "requires a token", "export HF_TOKEN"),
        (401, "t", "refused HF_TOKEN (401)", "accept the model's licence"),
        (403, "t", "refused HF_TOKEN (403)", "accept the model's licence"),
        (404, "t", "no such repository or revision", "services.SERVICE.model"),
        (500, "t", "the hub answered 500", "try again later"),
    ],
)
def test_a_status_has_a_reason(status: int, token: str, words: str, hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def get(url: str, *, headers: Any, largest: int) -> Reply:
        asked.append((url, headers.get("Authorization")))
        return Reply(status, json.dumps({"sha": "c" * 40, "siblings": FILES}).encode())

    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    monkeypatch.setattr(servers, "get", get)
    if status == 200:
        assert (servers.commit_of(MODEL), servers.size_of(MODEL)) == ("c" * 40, 7)
    else:
        with pytest.raises(LockError) as caught:
            servers.commit_of(MODEL)
        (problem,) = caught.value.problems
        assert words in problem.message and hint in problem.hint
    url = "https://huggingface.co/api/models/a/m/revision/main"
    assert asked[0] == (url, f"Bearer {token}" if token else None)
