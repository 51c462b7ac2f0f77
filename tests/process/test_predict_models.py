"""Models that owners of a Spark run, asked of the newest release."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from model_shapes import MODELS, gpu_of, judged, request, shown
from releases import PROFILES, Ask

from envgen.predict.judge import Verdict

NEWEST = PROFILES["prod"]
# One of each kind of experts each day, all of them every night.
DAILY = ("gpt-oss-120b", "qwen3.6-35b-a3b-nvfp4", "qwen3-30b-a3b-fp8")
EACH = [pytest.param(name, marks=[] if name in DAILY else [pytest.mark.nightly]) for name in MODELS]
About = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="session")
def about(ask_models: Ask, tmp_path_factory: pytest.TempPathFactory) -> About:
    """What the newest release answers about a model."""

    @functools.cache
    def answer(name: str) -> dict[str, Any]:
        return ask_models(NEWEST, {name: request(name, tmp_path_factory.mktemp("models"))})[name]

    return answer


@pytest.mark.parametrize("name", EACH)
def test_none_is_refused_that_the_release_would_start(about: About, name: str) -> None:
    answer = about(name)
    assert judged(answer).verdict in (Verdict.FITS, Verdict.UNKNOWN), shown(answer)
    # Whatever else could not be asked, the configuration was.
    assert answer["config_line"], shown(answer)


# Quantization of the experts -> what the newest logs, for `ready.expect`.
MOE = {
    "qwen3.6-35b-a3b-nvfp4": "Using 'FLASHINFER_CUTLASS' NvFp4 MoE backend",
    "nemotron-3-super-120b-nvfp4": "Using 'FLASHINFER_CUTLASS' NvFp4 MoE backend",
    "qwen3-30b-a3b-fp8": "Using TRITON Fp8 MoE backend",
    "nemotron-3-nano-30b-fp8": "Using FLASHINFER_CUTLASS Fp8 MoE backend",
    "qwen3-30b-a3b-int4": "Using 'MARLIN' WNA16 MoE backend",
    "qwen3-30b-a3b-awq": "Using 'MARLIN' WNA16 MoE backend",
    "qwen3-30b-a3b-nvfp4a16": "Using 'MARLIN' NvFp4 MoE backend",
    "qwen3-30b-a3b-mxfp8": "Using 'MARLIN' MxFp8 MoE backend",
    "glm-4.5-air-fp8": "Using TRITON Fp8 MoE backend",
    "glm-4.7-flash": "Using FlashInfer CUTLASS Unquantized MoE backend",
}


@pytest.mark.parametrize("name", [one for one in EACH if one.values[0] in MOE])
def test_experts_of_each_quantization_are_asked_with_the_release_s_own_words(about: About, name: str) -> None:
    answer = about(name)
    found = judged(answer)
    assert found.verdict is Verdict.FITS and found.patterns["moe"] == MOE[name]
    others = [one for one in answer["backends"] if one["step"] == "moe"]
    assert others and all(one["reason"] or one["verdict"] == "accepted" for one in others)


# Shapes that servers on an H200 had -> what their logs say. None: only the profile's image can be asked, and why.
LOGGED: dict[str, dict[str, Any]] = {
    "trinity-mini-w4a16": {"attention": "FLASH_ATTN", "moe": "HUMMING"},
    "kimi-linear-48b": {"attention": "FLASH_ATTN_MLA", "moe": "TRITON"},
    "mimo-v2-flash-fp8": {"attention": None, "moe": "TRITON"},
    "qwen3-30b-a3b-fp8-channel": {"attention": "FLASH_ATTN", "moe": None},
    "k-exaone-nvfp4": {"attention": "FLASH_ATTN", "moe": "HUMMING"},
    "granite-4.0-h-small-fp8": {"attention": "FLASH_ATTN", "moe": None},
}
GROUPED = (
    "which is not here, is asked whether it has cutlass_group_gemm_supported: if so the choice is VLLM_CUTLASS, else"
)
WHY = {
    "mimo-v2-flash-fp8": "attention layers of mimo_v2_flash choose their kernels themselves",
    "qwen3-30b-a3b-fp8-channel": GROUPED,
    "granite-4.0-h-small-fp8": GROUPED,
}


@pytest.mark.parametrize("name", LOGGED)
def test_without_compiled_code_it_names_what_a_server_s_log_names_or_why_not(
    ask_models: Ask, tmp_path: Path, name: str
) -> None:
    question = {**request(name, tmp_path), "gpu": gpu_of("9.0")}
    answer = ask_models(NEWEST, {name: question})[name]
    chosen = {step: answer["asked"].get(step) for step in LOGGED[name]}
    assert {step: one and one["backend"] for step, one in chosen.items()} == LOGGED[name], shown(answer)
    reasons = {one["step"]: one["why"] for one in answer["unasked"]}
    assert list(reasons) == [step for step, backend in LOGGED[name].items() if backend is None], shown(answer)
    assert all(WHY[name] in why for why in reasons.values())


def test_the_module_of_a_fused_all_reduce_is_foreseen(ask_models: Ask, tmp_path: Path) -> None:
    """Two H200 compiled it at the first start; 12.x has no such kernel."""
    plain = request("gpt-oss-20b", tmp_path)
    question = {**plain, "words": [*plain["words"], "--tensor-parallel-size", "2"], "gpu": gpu_of("9.0")}
    warnings = judged(ask_models(NEWEST, {"two": question})["two"]).warnings
    assert any("`envgen cache warm trtllm_mnnvl_comm`" in one for one in warnings)
