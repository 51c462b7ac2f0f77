"""What the names of attention modules say, as FlashInfer 0.5.3 and 0.7.2 spell them."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

from envgen.inside.warm import arguments, spec_of

DTYPES = {"bf16": "BF16", "e4m3": "E4M3", "i32": "I32", "fp4_e2m1": "FP4"}
DECODE = (
    "batch_decode_with_kv_cache_dtype_q_bf16_dtype_kv_e4m3_dtype_o_bf16_dtype_idx_i32_head_dim_qk_64_head_dim_vo_128_"
    "posenc_1_use_swa_True_use_logits_cap_False"
)
SINKS = (
    "batch_prefill_with_attention_sink_kv_cache_dtype_q_bf16_dtype_kv_fp4_e2m1_dtype_o_bf16_dtype_idx_i32_"
    "head_dim_qk_64_head_dim_vo_64_use_swa_False__sm90"
)


def test_each_parameter_is_read_from_its_word() -> None:
    assert arguments(DECODE, DTYPES) == {
        "backend": "fa2", "dtype_q": "BF16", "dtype_kv": "E4M3", "dtype_o": "BF16", "dtype_idx": "I32",
        "head_dim_qk": 64, "head_dim_vo": 128, "pos_encoding_mode": 1, "use_sliding_window": True,
        "use_logits_soft_cap": False,
    }  # fmt: skip


def test_sinks_have_no_encoding_and_a_backend_of_their_own() -> None:
    found = arguments(SINKS, DTYPES)
    assert (found["backend"], found["pos_encoding_mode"], found["dtype_kv"]) == ("fa3", 0, "FP4")


def test_a_dtype_that_this_release_does_not_know() -> None:
    assert arguments(DECODE, {"bf16": "BF16"}) == {}


def test_a_module_that_is_not_for_this_gpu_is_looked_for_nowhere_else() -> None:
    """Other generators may fetch cubins, with minutes of retries where there is no network."""
    asked = list[str]()

    def make(name: str, error: str = "") -> Any:
        asked.append(name)
        if error:
            raise RuntimeError(error)
        return SimpleNamespace(name=name)

    known = [("gen_trtllm_moe_module", partial(make, "trtllm_moe"))]
    own = ("gen_trtllm_comm_module", partial(make, "trtllm_comm", "No supported CUDA architectures"))
    assert spec_of("trtllm_comm", [*known, own]) is None and asked == ["trtllm_comm"]
    assert spec_of("trtllm_moe", [*known, own]).name == "trtllm_moe"
