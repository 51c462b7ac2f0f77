"""Whatever a release's container says: an answer that can't be read is no answer, and nothing falls over one that can.

Recorded answers with parts exchanged at random. ENVGEN_EXAMPLES says how many.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutated import CHANGES, Changes, mutated

from envgen.app.predict import Prediction
from envgen.cli.check import predict as command
from envgen.inside.run import NoAnswer
from envgen.predict.answer import checked
from envgen.predict.judge import Verdict, judge
from envgen.profile.load import load_project
from envgen.profile.model import Profile
from envgen.profile.service import Ready, Service

ANSWERS = Path(__file__).parent / "answers"
NAMES = sorted(path.stem for path in ANSWERS.glob("*.json"))
SIZE = {"config": {"num_hidden_layers": 2, "head_dim": 64, "num_attention_heads": 8}, "weights": 1 << 30, "ranks": 1,
        "stages": 1, "context": 4096, "sequences": 8, "batched": 2048, "cache_dtype": "auto", "dtype": "bfloat16",
        "share": 0.9, "fixed": None, "draft": "eagle3", "states": 1, "published": False, "draft_weights": 1 << 20,
        "draft_config": {"num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 8}}  # fmt: skip
BACKENDS: list[dict[str, Any]] = [
    {"step": "linear", "backend": "Kernel", "verdict": "refused", "reason": "too old", "args": {}}
]
READY = Ready(expect={"moe": "Using Marlin backend"}, forbid={"attention": "FA"})
SERVICE = Service(("vllm", "serve", "x"), ready=READY)
TEXT = """\
version: 1
name: t
default_profile: prod
profiles:
  prod:
    mode: production
    base: {image: "x:1"}
    cuda: {arch_list: 12.1a}
    services: {serve: {command: [vllm, serve, x]}}
"""


def recorded(name: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads((ANSWERS / f"{name}.json").read_text(encoding="utf-8"))
    return {**answer, "size": SIZE, "backends": BACKENDS}


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    folder = tmp_path_factory.mktemp("project")
    (folder / "envgen.yaml").write_text(TEXT, encoding="utf-8")
    return load_project(file=folder / "envgen.yaml", local=False).project.profiles["prod"]


def survives(answer: dict[str, Any], profile: Profile) -> bool:
    """Whether it can be read. All that is printed of it is made then."""
    known = checked(answer)
    found = Prediction("serve", "image x", known, judge(known, SERVICE))
    assert command.text(found, profile)
    json.dumps(command.document(found, profile))
    return not isinstance(known, NoAnswer)


@pytest.mark.parametrize("name", NAMES)
def test_the_recordings_themselves_can_be_read(name: str, profile: Profile) -> None:
    assert survives(recorded(name), profile)


@given(name=st.sampled_from(NAMES), changes=CHANGES)
def test_any_answer(profile: Profile, name: str, changes: Changes) -> None:
    survives(mutated(recorded(name), changes), profile)


@pytest.mark.parametrize(
    "part",
    [
        {"refusals": None}, {"refusals": [{"step": "moe"}]}, {"platform": {"capability": []}}, {"asked": []},
        {"asked": {"moe": "MARLIN"}}, {"asked": {"moe": {}}}, {"model": {}}, {"kv": {"block_size": 16}}, {"vllm": "x"},
        {"lines": [{"step": "moe", "level": "INFO", "text": 7}]}, {"notes": [7]}, {"backends": [{}]},
        {"stubs": [{}]},
    ],
)  # fmt: skip
def test_an_answer_of_another_shape_is_none(profile: Profile, part: dict[str, Any]) -> None:
    answer = {**copy.deepcopy(recorded(NAMES[0])), **part}
    assert not survives(answer, profile)
    known = checked(answer)
    assert isinstance(known, NoAnswer) and str(known).startswith("the answer can't be read: ")
    assert judge(known, SERVICE).verdict is Verdict.UNKNOWN
