"""Where a token's time goes: kernels by what people call them, for prefill and decode."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

GAPS = {"gpu": "gaps (the GPU waits)", "cpu": "Python, between operators"}
OTHER = "other"
# The first that fits counts. Names of kernels in vLLM, FlashInfer, CUTLASS, Triton, cuBLAS, torch.
KINDS = {
    "communication": r"nccl|all_?reduce|all_?gather|reduce_scatter|all_?to_?all|mnnvl|multimem"
    r"|lamport|nvshmem|deep_?ep::|cross_device_reduce",
    "attention": r"attention|attn|flash::|fmha|mha|xqa|mla|BatchPrefill|BatchDecode|paged_|kv_?cache"
    r"|reshape_(and_)?cache|concat_and_cache|reduce_segments|merge_?states|segments_diffkv|indexer"
    r"|mqa_logits|topKPerRow|^_fwd_(grouped_)?kernel(?!_ep)|delta_rule|gated_delta|gdn|kda|gla_fwd"
    r"|selective_scan|causal_conv1d|chunk_(fwd|scan|state|cumsum|local|scaled)|recompute_w_u|_ssd_"
    r"|scaled_dot_product",
    "MoE": r"moe|expert|topk_?gating|finalizeKernel|grouped|group_?gemm|GroupProblemShape|PtrArray"
    r"|swiglu_?oai|router|routing|matmul_ogs|ragged|bitmatrix|expt_|scatter_reduce|computeStrides"
    r"|expandInput|work_tile_map|doActivation|topk_softmax|^_topk(_forward)?$|masked_topk_sum|^_swiglu$|bmm_\w*E\dm\d"
    r"|permute_(rows|input)|shuffleInputRows|_fwd_kernel_ep_",
    "sampling": r"sampl|argmax|top_?k|top_?p|softmax|multinomial|exponential|penalt|logit|logprob"
    r"|sort|gumbel|_bias_kernel|min_p_|temperature|bincount|rejection|bad_words|philox",
    "linear": r"gemm(?!a)|gemv|matmul|cutlass|cublas|marlin|nvjet|wgmma|xmma|machete|\bmm\b|_mm(_|$)|addmm"
    r"|bmm|(?<!bi)linear|scaled_mm|splitK|onednn|w\d+a16|lora_|hadamard",
    "norm": r"norm|rsqrt",
    "rotary": r"rope|rotary",
    "quantization": r"quant|fp8|fp4|mxfp|scale_",
    "input preparation": r"prepare_|post_update|_apply_write|slot_mapping|block_table|seq_lens|idx_mapping",
    "copies": r"^(?!triton_).*(memcpy|memset|copy|_cat|CatArray|index_?select|gather|scatter|fill"
    r"|embedding|transpose|zero_kv)",
    "elementwise": r"elementwise|silu|gelu|sigmoid|act_and_mul|_and_mul|mul|triton_(poi|red|per)_"
    r"|reduce_kernel|aten::(add|div|sub|pow|mean|sum)",
}
HEAD = ("kernel", "share", "calls", "mean, us", "sum, us", "before")
FOLDER = "/tmp/envgen-trace"


@dataclass(frozen=True)
class KernelRow:
    """A kind of kernels, or one kernel. ``share``: of the wall time, in per cent."""

    name: str
    share: float
    calls: int
    mean_us: float
    sum_us: float


def kind_of(kernel: str) -> str:
    """What people call what this kernel does."""
    for kind, pattern in KINDS.items():
        if re.search(pattern, kernel, re.IGNORECASE):
            return kind
    return OTHER


def rows_of(
    summary: Mapping[str, Any], named: int = 3
) -> Iterator[tuple[KernelRow, list[KernelRow]]]:
    """Each kind, the most time first, with its ``named`` longest kernels; the gaps come last."""
    wall = float(summary.get("wall_us") or 0)
    kinds: dict[str, list[KernelRow]] = {}
    for kernel in summary.get("kernels", ()):
        calls = int(kernel["calls"])
        row = _row(str(kernel["name"]), calls, float(kernel["us"]), wall)
        kinds.setdefault(kind_of(row.name), []).append(row)
    summed = []
    for kind, rows in kinds.items():
        rows.sort(key=lambda row: -row.sum_us)
        calls = sum(row.calls for row in rows)
        spent = sum(row.sum_us for row in rows)
        summed.append((_row(kind, calls, spent, wall), rows[:named]))
    yield from sorted(summed, key=lambda pair: -pair[0].sum_us)
    if wall:
        gaps = max(0.0, wall - float(summary.get("busy_us") or 0))
        name = GAPS["gpu" if summary.get("device") == "gpu" else "cpu"]
        yield _row(name, 0, gaps, wall), []


def _row(name: str, calls: int, total: float, wall: float) -> KernelRow:
    share = 100 * total / wall if wall else 0.0
    return KernelRow(name, share, calls, total / calls if calls else 0.0, total)


def lines_of(
    summary: Mapping[str, Any], other: Mapping[str, Any] | None = None
) -> list[tuple[str, ...]]:
    """The table of a phase, its head first; beside ``other``'s shares where there is one."""
    against = {row.name: f"{row.share:.1f} %" for row, _ in rows_of(other or {})}
    lines: list[tuple[str, ...]] = [HEAD]
    for row, kernels in rows_of(summary):
        before = against.pop(row.name, "")
        lines.append((*_cells(row), before))
        for name, *rest in map(_cells, kernels):
            lines.append(("  " + name, *rest, ""))
    for name, share in against.items():
        lines.append((name, *["-"] * 4, share))
    return lines if other else [line[:-1] for line in lines]


def _cells(row: KernelRow) -> tuple[str, ...]:
    return (
        row.name if len(row.name) <= 70 else row.name[:67] + "...",
        f"{row.share:.1f} %",
        str(row.calls or "-"),
        f"{row.mean_us:,.1f}" if row.calls else "-",
        f"{row.sum_us:,.0f}",
    )
