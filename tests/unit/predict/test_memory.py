"""The estimate of memory against what vLLM's own logs say in public reports; what is not known stays unknown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envgen.predict.memory import DISCRETE, UNIFIED, Estimate, KvCost, cache_of, estimate
from envgen.recipes.shipped import models

GIB = 1 << 30
MODELS = {repo: facts["config"] for repo, facts in models().items()}
GPT_OSS = MODELS["openai/gpt-oss-120b"]
MINIMAX = {"num_hidden_layers": 62, "num_key_value_heads": 8, "head_dim": 128, "attn_type_list": [1] * 62}
QWEN_235B = {"num_hidden_layers": 94, "num_key_value_heads": 4, "head_dim": 128, "sliding_window": None}
QWEN_35B = MODELS["nvidia/Qwen3.6-35B-A3B-NVFP4"]["text_config"]

QWEN_27B = {
    **MODELS["Qwen/Qwen3.6-27B-FP8"]["text_config"],
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
}
QWEN_NEXT = MODELS["nvidia/Qwen3.8-Flash-Next-NVFP4"]["text_config"]

# Model, GPUs, cache's dtype, tokens of one sequence, what vLLM logged as sequences or bytes, the known error; for
# models with states, how many a sequence keeps.
MEASURED: list[tuple[Any, ...]] = [
    # eugr/spark-vllm-docker#396: 23.25 GiB are needed for 196608 tokens
    (MINIMAX, 2, "auto", 196608, 23.25 * GIB, 0.001, 1),
    # the same: 28.74 GiB hold 240,816 tokens
    (MINIMAX, 2, "auto", 240816, 28.74 * GIB, 0.01, 1),
    # vllm#21348: 8.11 GiB hold 178,880 tokens
    (QWEN_235B, 4, "auto", 178880, 8.11 * GIB, 0.015, 1),
    # noonghunna/club-3090#612: 5.98 GiB are 4.33 sequences of 131072 tokens
    (QWEN_35B, 1, "fp8", 131072, 5.98 / 4.33 * GIB, 0.01, 2),
    # the same project's #652, another machine and vLLM 0.24.0: 6.01 GiB are 4.35 sequences
    (QWEN_35B, 1, "fp8", 131072, 6.01 / 4.35 * GIB, 0.01, 2),
    # MiaAI-Lab/Qwen3.8-Flash-Next-Dual-DGX-Sparks: 31.7 GiB hold 2,131,159 tokens, a layer of MTP included
    (QWEN_NEXT, 2, "auto", 262144, 31.7 * 262144 / 2131159 * 12 / 13 * GIB, 0.03, 6),
    # An H200, vLLM 0.33.0: 2 GiB hold 271,629 tokens of 8192 each; four layers, one with attention (gpu-day)
    (QWEN_27B, 1, "auto", 8192, 2 * 8192 / 271629 * GIB, 0.01, 3),
]


SHAPES = Path(__file__).parents[2] / "support" / "shapes"


def cache(config: dict[str, Any], dtype: str = "auto", **more: Any) -> KvCost:
    found = cache_of(config, dtype, **more)
    assert found is not None
    return found


@pytest.mark.parametrize(("config", "ranks", "dtype", "tokens", "measured", "error", "states"), MEASURED)
def test_the_cache_is_as_large_as_vllm_s_own_logs_say(
    config: dict[str, Any], ranks: int, dtype: str, tokens: int, measured: float, error: float, states: int
) -> None:
    assert abs(cache(config, dtype, ranks=ranks, states=states).sequence(tokens) / measured - 1) <= error


SIZE = {
    "config": GPT_OSS, "weights": 61 * GIB, "context": 131072, "cache_dtype": "auto", "dtype": "bfloat16",
    "share": 0.7, "fixed": None, "ranks": 1, "stages": 1, "sequences": 2, "batched": 8192, "draft": "",
}  # fmt: skip


def made(gpu: int = 120 * GIB, *, unified: bool = True, **changed: Any) -> Estimate:
    """The estimate of SIZE with these changes."""
    found = estimate({**SIZE, **changed}, gpu, unified=unified)
    assert found is not None
    return found


def tokens_in(found: Estimate, room: int) -> float:
    """How many tokens of full sequences the room holds."""
    assert found.sequence is not None
    return room / found.sequence * found.context


def test_a_state_of_the_model_s_own_dtype_is_half_as_large() -> None:
    # An H100, vLLM 0.33.0, Qwen3-Next in FP8, three linear layers and one with attention: 2 GiB hold 621,226 tokens.
    config = {
        "layer_types": QWEN_27B["layer_types"], "num_key_value_heads": 2, "num_attention_heads": 16, "head_dim": 256,
        "linear_num_value_heads": 32, "linear_num_key_heads": 16, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
    }  # fmt: skip
    size: dict[str, Any] = {"config": config, "context": 8192, "fixed": 2 * GIB, "states": 3}
    own, older = (made(unified=False, **size, state_dtype=dtype) for dtype in ("bfloat16", "float32"))
    assert abs(tokens_in(own, 2 * GIB) / 621_226 - 1) < 0.002
    assert tokens_in(older, 2 * GIB) < tokens_in(own, 2 * GIB)
    assert made(unified=False, **size, state_dtype="fp4").cache is None


def shape(name: str, **changed: Any) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((SHAPES / f"{name}.json").read_text(encoding="utf-8"))
    return {**config, "num_hidden_layers": 4, **changed}


OLMO = {
    "layer_types": ["linear_attention"] * 3 + ["full_attention"], "num_attention_heads": 30, "hidden_size": 3840,
    "linear_num_key_heads": 30, "linear_num_value_heads": 30, "linear_key_head_dim": 96,
    "linear_value_head_dim": 192, "linear_conv_kernel_dim": 4,
}  # fmt: skip
KINDS = ["full_attention"] + ["sliding_attention"] * 3
# Four layers each, an H200, vLLM 0.33.0: the tokens of 8192 each that 2 GiB hold, by the server's log.
LOGGED = {
    "kimi-linear": (shape("kimi-linear-48b"), "float32", 722_385),
    "olmo-hybrid": (OLMO, "bfloat16", 131_297),
    "mimo-v2-flash": (shape("mimo-v2-flash-fp8", layer_types=KINDS), "float32", 119_635),
}


@pytest.mark.parametrize("name", LOGGED)
def test_layers_with_other_heads_or_states_are_counted_as_the_server_does(name: str) -> None:
    config, state_dtype, logged = LOGGED[name]
    found = made(140 * GIB, unified=False, config=config, context=8192, fixed=2 * GIB, states=2, checkpoints=False,
                 state_dtype=state_dtype)  # fmt: skip
    assert abs(tokens_in(found, 2 * GIB) / logged - 1) < 0.002


def test_windows_are_counted_as_vllm_counts_them() -> None:
    # vllm#27508, an H100 with --max-num-batched-tokens 1024: 4.54 GiB are needed for 131072 tokens
    assert round(cache(GPT_OSS).sequence(131072, 1024) / GIB, 2) == 4.54


def token(found: Estimate) -> int:
    assert found.cache is not None
    return found.cache.each_token


def test_a_draft_in_the_checkpoint_adds_its_attention_layers() -> None:
    without, own, other = (made(config=QWEN_35B, cache_dtype="fp8", draft=draft) for draft in ("", "mtp", "dflash"))
    assert other.cache == without.cache and token(own) - token(without) == 2 * 2 * 256  # one of eleven
    assert own.lines()[0].endswith("draft included") and other.lines()[0].endswith("draft not counted")


EAGLE = {"num_hidden_layers": 1, "num_key_value_heads": 8, "head_dim": 64, "num_attention_heads": 64}


def test_a_separate_draft_counts_with_its_weights_and_its_cache() -> None:
    alone, known = made(draft="eagle3"), made(draft="eagle3", draft_config=EAGLE, draft_weights=2 * GIB)
    assert known.weights == (alone.weights or 0) + 2 * GIB
    assert token(known) - token(alone) == 2 * 8 * 64 * 2
    assert alone.lines()[0].endswith("draft not counted") and known.lines()[0].endswith("draft included")


def test_layers_of_a_draft_fill_a_group_of_their_own() -> None:
    # An H200, vLLM 0.33.0, gpt-oss with four layers and an Eagle3 draft: "Add 1 padding layers", 2 GiB hold 174,648
    config = {**GPT_OSS, "layer_types": GPT_OSS["layer_types"][:4]}
    draft: dict[str, Any] = {"draft": "eagle3", "draft_config": EAGLE}
    found = made(140 * GIB, unified=False, config=config, context=8192, fixed=2 * GIB, **draft)
    assert abs(tokens_in(found, 2 * GIB) / 174_648 - 1) < 0.01
    assert found.lines()[0].endswith("the draft's weights not counted")


def test_states_that_are_not_known_are_an_unknown_cache() -> None:
    assert cache_of(QWEN_27B, "auto", states=None) is None
    assert cache_of(GPT_OSS, "auto", states=None) == cache_of(GPT_OSS, "auto")  # it has none


def test_a_windowed_layer_keeps_its_window_and_a_step() -> None:
    found = cache(GPT_OSS)
    each = 18 * 2 * 8 * 64 * 2  # half of the layers
    assert found.window == 128 and found.sequence(100) == 2 * each * 100
    assert found.sequence(131072, 8192) == each * 131072 + each * (127 + 8192)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"num_hidden_layers": 4},
        {"num_hidden_layers": True, "num_key_value_heads": 2, "head_dim": 4},
        {"num_hidden_layers": 10**9, "num_key_value_heads": 2, "head_dim": 4},
        {"layer_types": ["something_new"] * 4, "num_key_value_heads": 2, "head_dim": 4},
        {**MINIMAX, "attn_type_list": [0, 1] * 31},
        {**MINIMAX, "sliding_window": 4096},  # which layers have it is not said
        {**MINIMAX, "compress_ratios": [4]},
        {**QWEN_35B, "linear_value_head_dim": None},
        {"text_config": {"num_hidden_layers": "4"}},
        {**MINIMAX, "attn_type_list": [[1]]},
        {"layer_types": [{}], "num_key_value_heads": 1, "head_dim": 1},
        {"num_hidden_layers": 1, "hidden_size": 1, "num_attention_heads": 2},  # more heads than elements
    ],
)
def test_what_is_not_counted_is_unknown(config: dict[str, Any]) -> None:
    assert cache_of(config, "auto") is None


def test_an_unknown_dtype_of_the_cache_is_unknown() -> None:
    assert cache_of(MINIMAX, "nvfp4") is None and cache_of(MINIMAX, "fp8_ds_mla") is None


def test_the_context_that_fits_is_named() -> None:
    found = made()
    assert found.sequence and found.least == 61 * GIB + UNIFIED + found.sequence and found.context_that_fits == 131072
    assert found.lines()[-1] == "utilization 0.7 leaves 17.0 GiB for it: about 3.6 full sequences"
    tight = made(share=0.58)
    fits, room = tight.context_that_fits, tight.room
    assert fits and 0 < fits < 131072 and room and tight.cache
    assert tight.cache.sequence(fits, 8192) <= room < tight.cache.sequence(fits + 1, 8192)
    assert "131072 need utilization 0.60" in tight.lines()[-1]
    assert "about 0 tokens fit" in made(share=0.3).lines()[-1]
    assert made(fixed=2 * GIB).lines()[-1].startswith("--kv-cache-memory-bytes leaves 2.0 GiB")


def test_a_gpu_with_its_own_memory_leaves_more_of_it_for_the_cache() -> None:
    # One H100, vLLM 0.32.0, --gpu-memory-utilization 0.90, two steps under way: model 61.43 GiB, 201,005 tokens.
    found = made(85_017_493_504, unified=False, weights=int(61.43 * GIB), share=0.9, batched=2 * 8192)
    assert found.room is not None and abs(tokens_in(found, found.room) / 201_005 - 1) < 0.1
    assert found.document()["engine"] == DISCRETE < UNIFIED


def test_what_the_release_did_not_tell_is_not_made_up() -> None:
    unknown = made(weights=None)
    assert unknown.least is None and unknown.lines()[0].startswith("weights unknown")
    assert "KV cache: unknown" in made(config={}).lines()[-1]
    odd = made(weights="61 GB", fixed="6G", config={**MINIMAX, "attn_type_list": 7})
    assert (odd.weights, odd.fixed, odd.cache) == (None, None, None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"share": "much"}, {"share": float("nan")}, {"share": 0.0}, {"ranks": 0}, {"stages": None}, {"context": 10**99},
        {"sequences": "8"}, {"batched": [1]}, {"config": [1]}, {"context": None},
    ],
)  # fmt: skip
def test_an_answer_of_another_shape_is_no_estimate(wrong: dict[str, Any]) -> None:
    assert estimate({**SIZE, **wrong}, 120 * GIB, unified=True) is None
    assert estimate([SIZE], 120 * GIB, unified=True) is estimate(SIZE, "120", unified=True) is None


def test_too_little_memory_on_this_machine_is_reported() -> None:
    found = made()
    assert found.least and found.short(found.least) is None
    assert found.short(40 * GIB) == "memory: at least 71.8 GiB needed, 40.0 GiB available (page cache included)"
