"""Compile kernels of b12x for a GB10 that is not there, by b12x's own compile pool: seconds and
memory.

usage: ~/.cache/envgen/predict/0.33.0/bin/python benchmarks/kernels_of_b12x.py [WORD]...

The environment is that of scripts/predict-env, and what is compiled stays in
B12X_COMPILE_CACHE_DIR. Nothing is run.
WORD: only rows with all of these words, such as `MoE`.
"""

from __future__ import annotations

import importlib
import itertools
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from envgen.inside.predict import device

GB10 = {"name": "NVIDIA GB10", "capability": [12, 1], "memory": 120 << 30, "count": 1}
PAGE, WIDTH, SEQUENCES = 128, 1024, 2  # 131072 tokens
# Heads of queries and of keys, their size, windows (-1: none).
MODELS = {
    "gpt-oss": (64, 8, 64, (127, -1)),
    "MiniMax-M2.7": (48, 8, 128, (-1,)),
    "Qwen3.6-35B": (16, 2, 256, (-1,)),
}
# Experts, those of a token, hidden size, size of an expert; tokens of a step.
EXPERTS = {"Qwen3.6-35B": (256, 8, 2048, 512)}
TOKENS = (2, 8192)
Doc = dict[str, Any]


def tensor(dtype: str, *shape: int) -> Doc:
    """What a kernel must know of a tensor."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return {"shape": shape, "strides": tuple(strides), "dtype": dtype, "alignment": 16}


def attention(torch: Any, model: str, mode: str, kv: str, window: int) -> tuple[Any, Any]:
    """b12x's plan for one kernel, as vLLM's backend asks for it, and what it is tuned by."""
    paged: Any = importlib.import_module("b12x.attention.paged")
    preparation: Any = importlib.import_module("b12x.attention.paged._preparation")
    queries, keys, size, _ = MODELS[model]
    rows = SEQUENCES if mode == "decode" else 512
    shared: Doc = {
        "device": torch.device("cuda", 0),
        "kv_dtype": getattr(torch, kv),
        "num_q_heads": queries,
        "num_kv_heads": keys,
        "head_dim_qk": size,
        "head_dim_vo": size,
        "page_size": PAGE,
    }
    room: Doc = {
        **shared,
        "q_dtype": torch.bfloat16,
        "batch": SEQUENCES,
        "max_cache_page_count": WIDTH,
        "window_left": window,
    }
    if mode == "decode":
        capacity = paged.decode_graph_capacity(**room)
        partial = capacity.max_partial_rows
    else:
        capacity, partial = paged.extend_graph_capacity(**room, total_q_capacity=rows), 0
    caps = paged.Caps(
        mode=mode,
        dtype=torch.bfloat16,
        max_total_q=rows,
        max_batch=SEQUENCES,
        max_page_table_width=WIDTH,
        max_work_items=capacity.max_work_items,
        max_partial_rows=partial,
        num_cache_pages=WIDTH,
        use_cuda_graph=True,
        copy_runtime_metadata=mode == "decode",
        **shared,
    )
    cache, output = tensor(kv, WIDTH, PAGE, keys, size), tensor("bfloat16", rows, queries, size)
    operands: Doc = {
        "q": output,
        "output": output,
        "k_cache": cache,
        "v_cache": cache,
        "page_table": tensor("int32", SEQUENCES, WIDTH),
        "cache_seqlens": tensor("int32", SEQUENCES),
        "cu_seqlens_q": tensor("int32", SEQUENCES + 1),
    }
    if model == "gpt-oss":
        operands["attention_sink_bias"] = tensor("float32", queries)
    if "float8" in kv:
        operands.update(
            {name: tensor("float32", SEQUENCES, keys) for name in ("k_descale", "v_descale")}
        )
    described = preparation.invocation_from_descriptors(caps, operands=operands)
    return preparation.plan(
        caps, invocation={**described, "window_left": window}
    ), preparation.TUNING


def experts(torch: Any, model: str, tokens: int) -> tuple[Any, Any]:
    """b12x's plan for a layer of NVFP4 experts and so many tokens of a step; it needs the shape of
    weights alone.
    """
    fused_moe: Any = importlib.import_module("b12x.moe.fused_moe")
    preparation: Any = importlib.import_module("b12x.moe.fused_moe._preparation")
    count, top, hidden, inner = EXPERTS[model]
    weights = fused_moe.plan_weights(
        source=fused_moe.PackedSource(format="modelopt_nvfp4", w13_layout="w31"),
        activation=fused_moe.ActivationSpec(
            mode="a4", nonlinearity="silu", io_dtype=torch.bfloat16
        ),
        geometry=fused_moe.MoEGeometry(
            num_experts=count, hidden_size=hidden, intermediate_size=inner
        ),
    )
    scales = torch.ones(count)
    layer = SimpleNamespace(
        plan=weights._impl,
        num_experts=count,
        hidden_size=hidden,
        intermediate_size=inner,
        a1_gscale=scales,
        a2_gscale=scales,
        w1_fp4=SimpleNamespace(device=torch.device("cuda", 0)),
        can_share_input=lambda **_: True,
    )
    prepared = object.__new__(fused_moe.PreparedExperts)
    vars(prepared).update(plan=weights, _impl=layer)
    capacity = fused_moe.ExecutionCapacity(max_tokens=tokens, top_k=top)
    return preparation.plan(prepared, capacity=capacity), preparation.TUNING


def compiled(torch: Any, ask: Callable[[], tuple[Any, Any]]) -> str:
    gpu: Any = importlib.import_module("b12x.preparation.device").detect_device(
        torch.device("cuda", 0)
    )
    plan, tuning = ask()
    choice = tuning.configure(plan.query, device=gpu.identity, override=None)
    pool: Any = importlib.import_module("b12x._lib.compile_pool").CompilePool(
        device_ordinal=0,
        compute_capability=(12, 1),
        device_uuid=gpu.uuid,
        product_name=gpu.identity.product_name,
        sm_count=gpu.identity.sm_count,
        max_shared_memory_per_block=gpu.max_shared_memory_per_block,
        max_shared_memory_per_multiprocessor=gpu.max_shared_memory_per_multiprocessor,
        workers=1,
    )
    with pool:
        pool.compile(plan._compile_jobs(choice.pinned or choice.default, gpu))
        return f"{pool.summary().cute_compilations} in CuTe DSL"


def rows(torch: Any) -> dict[tuple[str, ...], Callable[[], tuple[Any, Any]]]:
    """Model, kernel, and what it is for -> its question."""
    found: dict[tuple[str, ...], Callable[[], tuple[Any, Any]]] = {}
    for model, (*_, windows) in MODELS.items():
        for mode, kv, window in itertools.product(
            ("decode", "extend"), ("bfloat16", "float8_e4m3fn"), windows
        ):
            row = (model, f"attention, {mode}", f"KV cache in {kv}, window {window + 1 or 'none'}")
            found[row] = partial(attention, torch, model, mode, kv, window)
    for model, tokens in itertools.product(EXPERTS, TOKENS):
        found[model, "MoE", f"NVFP4, {tokens} tokens"] = partial(experts, torch, model, tokens)
    return found


def main() -> None:
    device.play(dict(GB10))
    torch: Any = importlib.import_module("torch")
    print(
        "| model | kernel | for | compiled | seconds | largest process, MiB |\n"
        + "| --- " * 6
        + "|"
    )
    for row, ask in rows(torch).items():
        if not all(word in " ".join(row) for word in sys.argv[1:]):
            continue
        began = time.monotonic()
        try:
            result = compiled(torch, ask)
        except ValueError as no:
            result = f"no: {no}"
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
        print(
            "| "
            + " | ".join(map(str, [*row, result, f"{time.monotonic() - began:.0f}", peak]))
            + " |",
            flush=True,
        )


if __name__ == "__main__":
    main()
