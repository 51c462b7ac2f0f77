"""Traces: kernels summed in the container, and named on the host."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.bench.trace import GAPS, kind_of, lines_of, rows_of
from envgen.inside import kernels

# As traces of vLLM on GPUs and public profiles name them.
NAMES = {
    "kernel_unified_attention_2d": "attention",
    "void flashinfer::BatchDecodeWithPagedKVCacheKernel<...>": "attention",
    "_ZN5flash32FlashAttnFwdSm90": "attention",
    "reshape_and_cache_kernel_flash": "attention",
    "void marlin_moe_wna16::Marlin<...>": "MoE",
    "_matmul_ogs_NNT_bf16xbf16xmxfp4_128x256": "MoE",
    "void tensorrt_llm::kernels::cutlass_kernels::finalizeMoeRoutingKernel<...>": "MoE",
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<...>>": "linear",
    "nvjet_tst_128x64_64x5_1x2_h_bz_TNN": "linear",
    "triton_red_fused__to_copy_add_rms_norm_0": "norm",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "communication",
    "void at::native::(anonymous namespace)::cunn_SoftMaxForward<...>": "sampling",
    "Memcpy DtoH (Device -> Pinned)": "copies",
    "rotary_embedding_kernel": "rotary",
    "aten::addmm": "linear",
    "something_of_nobody": "other",
}


@pytest.mark.parametrize(("name", "kind"), NAMES.items())
def test_kernels_have_the_names_that_people_use(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def event(name: str, start: float, length: float, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": name, "ts": start, "dur": length, **more}


def written(folder: Path, events: list[dict[str, Any]], name: str = "rank0.pt.trace.json.gz") -> Path:
    path = folder / name
    text = json.dumps({"traceEvents": events}).encode()
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return path


def test_of_several_ranks_the_busiest_counts_and_gaps_are_the_rest(tmp_path: Path) -> None:
    events = [
        event("marlin_moe", 0, 40), event("attention", 30, 20), event("marlin_moe", 60, 20, cat="kernel"),
        event("python", 0, 999, cat="python_function"), {"ph": "M", "name": "process_name"},
        event("Memcpy HtoD", 90, 10, cat="gpu_memcpy"),
    ]  # fmt: skip
    path = written(tmp_path, events)
    written(tmp_path, [event("idle", 0, 1)], "rank1.json")
    summary = kernels.answer({"folder": str(tmp_path)})
    assert not path.exists() and summary["device"] == "gpu"
    assert (summary["busy_us"], summary["wall_us"]) == (80.0, 100.0)
    assert summary["kernels"][0] == {"name": "marlin_moe", "calls": 2, "us": 60.0}
    rows = {row.name: (row.share, row.calls, row.mean_us) for row, _ in rows_of(summary)}
    assert rows["MoE"] == (60.0, 2, 30.0) and rows[GAPS] == (20.0, 0, 0.0) and rows["copies"][0] == 10.0


def test_an_operator_of_the_cpu_counts_without_those_inside_of_it(tmp_path: Path) -> None:
    events = [
        event("aten::linear", 0, 100, cat="cpu_op", tid=1), event("aten::addmm", 10, 60, cat="cpu_op", tid=1),
        event("aten::copy_", 20, 10, cat="cpu_op", tid=1), event("aten::sort", 5, 50, cat="cpu_op", tid=2),
    ]  # fmt: skip
    written(tmp_path, events)
    summary = kernels.answer({"folder": str(tmp_path)})
    assert {row["name"]: row["us"] for row in summary["kernels"]} == {
        "aten::linear": 40.0, "aten::addmm": 50.0, "aten::copy_": 10.0, "aten::sort": 50.0,
    }  # fmt: skip
    assert summary["wall_us"] == 100.0 and GAPS not in {row.name for row, _ in rows_of(summary)}


def test_a_table_beside_another_has_its_shares_and_what_is_gone(tmp_path: Path) -> None:
    now = {"device": "gpu", "wall_us": 100, "busy_us": 100, "kernels": [{"name": "fmha", "calls": 4, "us": 100}]}
    before = {"device": "gpu", "wall_us": 10, "busy_us": 10, "kernels": [{"name": "marlin_moe", "calls": 1, "us": 10}]}
    lines = lines_of(now, before)
    assert lines[0][-1] == "before" and ("attention", "100.0 %", "4", "25.0", "100", "") in lines
    assert ("MoE", "-", "-", "-", "-", "100.0 %") in lines
    assert lines_of({"kernels": []}) == [("kernel", "share", "calls", "mean, us", "sum, us")]


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e5)), max_size=20))
def test_busy_time_is_never_more_than_the_wall_or_the_sum(spans: list[tuple[float, float]]) -> None:
    summary = kernels.summed([event("k", start, length) for start, length in spans])
    assert summary["busy_us"] <= summary["wall_us"] + 1e-6
    assert summary["busy_us"] <= sum(length for _, length in spans) + 1e-3
