"""Every backend of a release's own lists, asked about each model: none is refused because there is no GPU here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from model_shapes import GPUS, MODELS, gpu_of, refused_for_want_of_a_gpu, request, shown
from releases import PROFILES, Ask

pytestmark = pytest.mark.nightly
RELEASES = (PROFILES["prod"], "0.30.0")
# What is made for 12.x, and what the release says about it; on 9.0 it accepts none.
B12X = {
    "gpt-oss-120b": {
        "attention": "b12x has no decode kernel for heads of 64",
        "moe": "kernel does not support expert biases",
    },
    "qwen3.6-35b-a3b-nvfp4": {"attention": "accepted", "moe": "accepted"},
    "qwen3.6-27b-fp8": {"attention": "accepted"},
    "nemotron-3-super-120b-nvfp4": {"attention": "accepted", "moe": "accepted"},
    "minimax-m2.7-nvfp4": {"attention": "accepted", "moe": "accepted"},
    "gemma-4-26b-a4b-nvfp4": {"attention": "head_size not supported"},
}


def asked(ask_models: Ask, release: str, gpu: str, name: str, folder: Path) -> dict[str, Any]:
    question = {**request(name, folder), "gpu": gpu_of(gpu)}
    return ask_models(release, {name: question})[name]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("release", RELEASES)
def test_no_backend_is_refused_for_want_of_a_gpu(
    ask_models: Ask, tmp_path: Path, release: str, gpu: str, name: str
) -> None:
    answer = asked(ask_models, release, gpu, name, tmp_path)
    others = answer["backends"]
    assert not refused_for_want_of_a_gpu(answer)
    assert {one["step"] for one in others} >= {step for step in ("attention", "moe") if answer["asked"].get(step)}, (
        shown(answer)
    )
    found = {
        one["step"]: one for one in others if "b12x" in json.dumps(one["args"]).lower().replace("flashinfer_b12x", "")
    }
    if release == RELEASES[0] and gpu == "12.1":
        for step, wanted in B12X.get(name, {}).items():
            verdict, reason = found[step]["verdict"], found[step]["reason"]
            assert verdict == wanted or wanted in reason, (step, verdict, reason)
    if gpu == "9.0":
        assert not [one for one in found.values() if one["verdict"] == "accepted"]
