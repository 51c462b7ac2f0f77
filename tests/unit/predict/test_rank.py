"""What one rank holds, from the figures of gpt-oss-120b; what the release itself asks for is made up."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envgen.app.predict import MODELS
from envgen.inside.predict_vllm import ask_rank

GIB = 1 << 30
TEXT = SimpleNamespace(**json.loads(MODELS.read_text(encoding="utf-8"))["openai/gpt-oss-120b"])


def rank(size: int = 2, *, memory: int = 120 * GIB, offloads: bool = False, **changes: Any) -> dict[str, Any]:
    """What is found for gpt-oss-120b on ``size`` GPUs."""
    model = SimpleNamespace(
        hf_config=TEXT, hf_text_config=TEXT, use_mla=False, max_model_len=131072, dtype=SimpleNamespace(itemsize=2),
        get_num_layers=lambda _: 36, get_num_kv_heads=lambda _: 8 // size, get_head_size=lambda: 64,
        get_num_attention_heads=lambda _: 64 // size,
    )  # fmt: skip
    config = SimpleNamespace(
        model_config=model, scheduler_config=SimpleNamespace(max_num_batched_tokens=8192),
        parallel_config=SimpleNamespace(tensor_parallel_size=size, pipeline_parallel_size=1),
        cache_config=SimpleNamespace(cache_dtype="auto", gpu_memory_utilization=0.7),
    )  # fmt: skip
    found: dict[str, Any] = {
        "asked": {}, "refusals": [], "platform": {"memory": memory}, "model": {}, "quantization": "gpt_oss_mxfp4",
        **changes,
    }  # fmt: skip
    ask_rank(config, found, offloads)
    return found


def test_all_of_the_weights_and_half_of_them() -> None:
    whole, half = rank(1)["rank"], rank(2)["rank"]
    assert 60.5 * GIB < whole["weights"] < 61 * GIB  # the published files have 60.8 GiB
    assert half["weights"] == pytest.approx(whole["weights"] / 2, rel=0.001)
    assert (whole["kv_token"], half["kv_token"]) == (73728, 36864)
    # 18 layers hold all tokens, 18 a window of 128 and one step.
    assert half["kv_request"] == 1024 * 18 * (131072 + 128 + 8192)


@pytest.mark.parametrize(
    ("memory", "words"), [(40 * GIB, "holds 30.4 GiB of weights, and gpu-memory"), (46 * GIB, "one request of 131072")]
)
def test_a_gpu_that_is_too_small_is_refused(memory: int, words: str) -> None:
    [refusal] = rank(2, memory=memory)["refusals"]
    assert refusal["step"] == "memory" and words in refusal["message"]
    assert rank(2, memory=memory, offloads=True)["refusals"] == []


def test_of_other_models_their_files_are_shared(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(64))
    found = rank(2, memory=0, quantization=None, model={"place": str(tmp_path / "config.json")})
    assert (found["rank"]["weights"], found["rank"]["from"], found["refusals"]) == (32, "files", [])
