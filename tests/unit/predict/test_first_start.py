"""What `up` says of a vLLM that could not be asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from envgen.app.predict import not_asked
from envgen.predict.judge import Judgement, Verdict
from envgen.profile.load import load_project

PROFILES = load_project(file=Path(__file__).parents[3] / "envgen.yaml", environ={}, local=False).project.profiles
MISSING = (
    "configuration: ValidationError: 1 validation error for ModelConfig: failed to be inspected (ImportError:"
    " vllm.vllm_flash_attn requires the CUDA flash attention extensions)",
    "import: import vllm: ModuleNotFoundError: No module named 'vllm._version'",
)


@pytest.mark.parametrize("why", MISSING)
def test_checkouts_that_the_start_installs_are_one_sentence(why: str) -> None:
    judged = Judgement(Verdict.UNKNOWN, unasked=(why, "moe: the same"))
    (sentence,) = not_asked(PROFILES["dev"], judged)
    assert "second start" in sentence and "Error" not in sentence
    assert not_asked(PROFILES["prod"], judged) == [f"not asked: {why}", "not asked: moe: the same"]


def test_what_else_could_not_be_asked_is_said_of_a_checkout_too() -> None:
    judged = Judgement(Verdict.UNKNOWN, unasked=("model: the config.json is not in the cache",))
    assert not_asked(PROFILES["dev"], judged) == ["not asked: model: the config.json is not in the cache"]
