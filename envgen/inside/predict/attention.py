"""The release's selector of attention kernels."""

from __future__ import annotations

import importlib
import inspect
import os
from typing import Any

from envgen.inside.common import Doc
from envgen.inside.predict.release import (
    NotAskable,
    ReleaseRefused,
    accepted,
    asked_for,
    error_for,
    model_code,
    named,
)


def ask_attention(config: Any, report: Doc) -> Doc:
    where, select = named("attention")
    model = config.model_config
    cache = config.cache_config
    text = getattr(model, "hf_text_config", model.hf_config)
    # DeepSeek V4 (from 5.19 on, Transformers may rename its compress_ratios), Qwen's sparse
    # attention, and models with other heads for values, such as MiMo-V2.
    if any(
        getattr(text, name, None)
        for name in ("compress_ratios", "compress_rates", "indexer_compress_ratio")
    ) or names_backend(model):
        raise NotAskable(
            f"attention layers of {report['model']['type']} choose their kernels themselves, "
            "without the selector"
        )
    parallel = config.parallel_config
    shared = {
        "head_size": model.get_head_size(),
        "dtype": model.dtype,
        "kv_cache_dtype": cache.cache_dtype,
        "block_size": cache.block_size,
        "use_mla": bool(model.use_mla),
        "has_sink": report["model"].get("sinks", False),
        "use_sparse": hasattr(text, "index_topk"),
        "num_heads": model.get_num_attention_heads(parallel),
        "use_mm_prefix": bool(getattr(model, "is_mm_prefix_lm", False)),
        "attn_type": None,
        "is_attention_free": bool(getattr(model, "is_attention_free", False)),
        "use_v1": True,
    }
    chosen = []
    # From 0.30 on layers with a window may get another kernel: ask for each kind.
    kinds = [True, False] if getattr(text, "sliding_window", None) else [False]
    for window in (
        kinds if "has_sliding_window" in inspect.signature(select).parameters else [False]
    ):
        values = accepted(select, dict(shared, has_sliding_window=window))
        try:
            backend = select(**values)
            name = str(backend.get_name())
        except Exception as problem:
            raise error_for(problem) from None
        if name == "B12X":
            ask_b12x(model, backend, cache.block_size)
        if name not in chosen:
            chosen.append(name)
    wanted = asked_for(config, "attention_config", "backend") or os.environ.get(
        "VLLM_ATTENTION_BACKEND"
    )
    return {"where": where, "backend": " + ".join(chosen), "asked_for": wanted}


def names_backend(model: Any) -> bool:
    """Whether the model's own code names a backend for its attention layers."""
    try:
        return "attn_backend=" in inspect.getsource(model_code(model))
    except Exception:  # another release
        return False


def ask_b12x(model: Any, backend: Any, block: Any) -> None:
    """Ask what the selector does not: the pages that its layers take, and b12x itself for its
    decode kernel.

    vLLM 0.33.0 builds the layers before it chooses a size of pages for them, and lists heads that
    b12x 1.5.1 lacks.
    """
    if not getattr(backend, "supports_block_size", lambda _: True)(block):
        wanted = backend.get_preferred_block_size(block)
        raise ReleaseRefused(
            f"B12X does not take pages of {block} tokens: give it --block-size {wanted}"
        )
    size = int(model.get_head_size())
    try:
        select = importlib.import_module("b12x.attention.paged.traits").select_paged_forward_traits
        device = importlib.import_module("torch").device("cuda", 0)
    except Exception:
        return  # another version of it
    kinds = dict.fromkeys(("q_dtype", "kv_dtype", "o_dtype"), model.dtype)
    try:  # 16 rows of queries: its decode kernel has no other tile
        select(cta_tile_q=16, head_dim_qk=size, head_dim_vo=size, device=device, **kinds)
    except ValueError as no:
        raise ReleaseRefused(f"b12x has no decode kernel for heads of {size}: {no}") from None
    except Exception:
        return
