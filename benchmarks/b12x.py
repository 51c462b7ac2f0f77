"""Compile b12x's attention for a GB10 that is not there, by b12x's own compile pool: seconds and memory.

usage: ~/.cache/envgen/predict/0.33.0/bin/python benchmarks/b12x.py

The environment is that of scripts/predict-env, and what is compiled stays in B12X_COMPILE_CACHE_DIR. Nothing is run.
"""

from __future__ import annotations

import importlib
import itertools
import resource
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from envgen.inside.predict import device

GB10 = {"name": "NVIDIA GB10", "capability": [12, 1], "memory": 120 << 30, "count": 1}
PAGE, WIDTH, SEQUENCES = 128, 1024, 2  # 131072 tokens
# Heads of queries and of keys, their size, windows (-1: none).
MODELS = {"gpt-oss": (64, 8, 64, (127, -1)), "MiniMax-M2.7": (48, 8, 128, (-1,)), "Qwen3.6-35B": (16, 2, 256, (-1,))}
Doc = dict[str, Any]


def tensor(dtype: str, *shape: int) -> Doc:
    """What a kernel must know of a tensor."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return {"shape": shape, "strides": tuple(strides), "dtype": dtype, "alignment": 16}


def question(torch: Any, model: str, mode: str, kv: str, window: int) -> Any:
    """b12x's plan for one kernel, as vLLM's backend asks for it."""
    paged: Any = importlib.import_module("b12x.attention.paged")
    preparation: Any = importlib.import_module("b12x.attention.paged._preparation")
    queries, keys, size, _ = MODELS[model]
    rows = SEQUENCES if mode == "decode" else 512
    shared: Doc = {"device": torch.device("cuda", 0), "kv_dtype": getattr(torch, kv), "num_q_heads": queries,
                   "num_kv_heads": keys, "head_dim_qk": size, "head_dim_vo": size, "page_size": PAGE}  # fmt: skip
    room: Doc = {**shared, "q_dtype": torch.bfloat16, "batch": SEQUENCES, "max_cache_page_count": WIDTH,
                 "window_left": window}  # fmt: skip
    if mode == "decode":
        capacity = paged.decode_graph_capacity(**room)
        partial = capacity.max_partial_rows
    else:
        capacity, partial = paged.extend_graph_capacity(**room, total_q_capacity=rows), 0
    caps = paged.Caps(
        mode=mode, dtype=torch.bfloat16, max_total_q=rows, max_batch=SEQUENCES, max_page_table_width=WIDTH,
        max_work_items=capacity.max_work_items, max_partial_rows=partial, num_cache_pages=WIDTH, use_cuda_graph=True,
        copy_runtime_metadata=mode == "decode", **shared,
    )  # fmt: skip
    cache, output = tensor(kv, WIDTH, PAGE, keys, size), tensor("bfloat16", rows, queries, size)
    operands: Doc = {"q": output, "output": output, "k_cache": cache, "v_cache": cache,
                     "page_table": tensor("int32", SEQUENCES, WIDTH), "cache_seqlens": tensor("int32", SEQUENCES),
                     "cu_seqlens_q": tensor("int32", SEQUENCES + 1)}  # fmt: skip
    if model == "gpt-oss":
        operands["attention_sink_bias"] = tensor("float32", queries)
    if "float8" in kv:
        operands.update({name: tensor("float32", SEQUENCES, keys) for name in ("k_descale", "v_descale")})
    described = preparation.invocation_from_descriptors(caps, operands=operands)
    return preparation.plan(caps, invocation={**described, "window_left": window})


def compiled(torch: Any, model: str, mode: str, kv: str, window: int) -> str:
    tuning: Any = importlib.import_module("b12x.attention.paged._preparation").TUNING
    gpu: Any = importlib.import_module("b12x.preparation.device").detect_device(torch.device("cuda", 0))
    plan = question(torch, model, mode, kv, window)
    choice = tuning.configure(plan.query, device=gpu.identity, override=None)
    pool: Any = importlib.import_module("b12x._lib.compile_pool").CompilePool(
        device_ordinal=0, compute_capability=(12, 1), device_uuid=gpu.uuid, product_name=gpu.identity.product_name,
        sm_count=gpu.identity.sm_count, max_shared_memory_per_block=gpu.max_shared_memory_per_block,
        max_shared_memory_per_multiprocessor=gpu.max_shared_memory_per_multiprocessor, workers=1,
    )  # fmt: skip
    with pool:
        pool.compile(plan._compile_jobs(choice.pinned or choice.default, gpu))
        return f"{pool.summary().cute_compilations} in CuTe DSL"


def main() -> None:
    device.play(dict(GB10))
    torch: Any = importlib.import_module("torch")
    print("| model | kernel | KV cache | window | compiled | seconds | largest process, MiB |\n" + "| --- " * 7 + "|")
    for model, (*_, windows) in MODELS.items():
        for mode, kv, window in itertools.product(("decode", "extend"), ("bfloat16", "float8_e4m3fn"), windows):
            began = time.monotonic()
            try:
                result = compiled(torch, model, mode, kv, window)
            except ValueError as no:
                result = f"no: {no}"
            peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
            shown = [model, mode, kv, window + 1 or "none", result, f"{time.monotonic() - began:.0f}", peak]
            print("| " + " | ".join(map(str, shown)) + " |", flush=True)


if __name__ == "__main__":
    main()
