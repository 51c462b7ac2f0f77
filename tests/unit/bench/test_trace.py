"""Traces: kernels summed in the container, and named on the host."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.bench.trace import GAPS, kind_of, lines_of, rows_of
from envgen.cli.measure.trace import shown
from envgen.inside import kernels

# As traces and profiles have them: of vLLM 0.33 on an H200, of its own code, and of public tables of nsys and torch.
NAMES = {
    "attention": """
kernel_unified_attention_2d
kernel_unified_attention
reduce_segments
kernel_reduce_segments_diffkv
void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0, 2u, 4u, 8u, 16u, 8u, 1u>
void flashinfer::BatchPrefillWithPagedKVCacheKernel<flashinfer::KernelTraits<1, 64, 1, 4, 4, 4, 1, 8>>
void flashinfer::PersistentVariableLengthMergeStatesKernel<8u, 16u, 8u, 4u, __nv_bfloat16, __nv_bfloat16, int>
kernel_mha(unsigned int, unsigned int, float, float const*, Vec<__nv_bfloat16, 64u>*, Vec<__nv_bfloat16, 64u> const*)
void flashinfer::PrefillWithKVCacheKernel<flashinfer::SparseCollectiveMainloop<PagedParams::AdditionalParams>>
fmhaSm100fKernel_QkvBfloat16OBfloat16H64PagedKvSlidingOrChunkedCausalP32VarSeqQ8Kv128PersistentSwapsAbForGen
void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2>>>>
void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<64, 64, 256, 4, false, false, cutlass::bfloat16_t>>
void flash::prepare_varlen_num_blocks_kernel<1, true>(int, int, int, int const*)
void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, (vllm::Fp8KVCacheDataType)0>
reshape_and_cache_kernel_flash
void vllm::concat_and_cache_mla_kernel<__nv_bfloat16, __nv_bfloat16, (vllm::Fp8KVCacheDataType)0>
_fwd_grouped_kernel_stage1
_fwd_kernel_stage2
void vllm::merge_attn_states_kernel<float, 128u>
chunk_gated_delta_rule_fwd_kernel_h_blockdim64
fused_recurrent_gated_delta_rule_fwd_kernel
_causal_conv1d_update_kernel
_C_cache_ops::reshape_and_cache
_C::cpu_attention_with_kv_cache""",
    "MoE": """
_matmul_ogs_NNT_bf16xbf16xmxfp4_16x256x128x1_swiglu
_p_matmul_ogs
_combined_routing_compute_pow2
_ZN7cutlass13device_kernelINS_4gemm6kernel33GemmUniversalPrecomputedSchedulerINS1_17GroupProblemShapeIN4cute5tuple
_ZN12tensorrt_llm7kernels19cutlass_kernels_oss6detail38build_precomputed_work_tile_map_kernelILi64ELi16ELi1ELi1ELb0
void tensorrt_llm::kernels::cutlass_kernels::computeStridesTmaWarpSpecializedKernel<__nv_bfloat16>
_expt_data_memset
_sum_bitmatrix_rows
_reduce_grouped
_topk_forward
void marlin_moe_wna16::Marlin<1125899906843648l, 1125899907892736l, 1125899906843648l, 256, 1, 8, 8, true, 4, 2>
void vllm::moe::moe_align_block_size_small_batch_expert_kernel<int, 256>
void vllm::moe::topkGating<4, 128, 4, 16, 32, int, __nv_bfloat16>
void vllm::swigluoai_and_mul_kernel<c10::BFloat16, &vllm::swigluoai_and_mul>
void vllm::moe::moe_sum_vec_kernel<c10::BFloat16, 4>
fused_moe_kernel
void tensorrt_llm::kernels::cutlass_kernels::finalizeMoeRoutingKernel<__nv_bfloat16, __nv_bfloat16, 1>
void tensorrt_llm::kernels::cutlass_kernels::expandInputRowsKernel<__nv_bfloat16, __nv_bfloat16>
void tensorrt_llm::kernels::cutlass_kernels::doActivationKernel<__nv_bfloat16, __nv_bfloat16>
void tensorrt_llm::kernels::cutlass_kernels::globalExpertPrefixSumKernel<256>(int const*, int*, int*)
void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<cute::tuple<long>>>>
bmm_E2m1_E2m1E2m1_Fp32_t128x32x512u2_s5_et128x32_m256x32x64_cga2x1x1
bmm_MxE4m3_MxE2m1MxE4m3_Fp32_bA32_bB32_t128x8x512_s3
finalizeKernelVecLoad
void fp32_router_gemm_kernel<128, 4, 2880>""",
    "linear": """
nvjet_tst_64x24_64x16_4x1_v_bz_splitK_bias_TNT
nvjet_sm121_tst_mma_64x48x64_4_64x16x64_tmaAB_bz_TNNN
void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_bf16_64x64_64x6_tn_align8>
void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int>>>
void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16, true, true, false>
void gemv2T_kernel_val<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, 128, 16, 4, 4, false, true>
void marlin::Marlin<1125899906843648l, 1125899907892736l, 256, 1, 8, 8, 4, 8, false>
ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn
void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 4096u, 7168u, 1u>
_w8a8_triton_block_scaled_mm
aten::addmm
aten::mm
_C::onednn_mm""",
    "norm": """
std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type vllm::fused_add_rms_norm_kernel<>
triton_red_fused__to_copy_embedding_rms_norm_0
void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>
void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>
triton_red_fused__to_copy_add_rms_norm_0
triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_1
_gemma_rmsnorm_kernel""",
    "rotary": """
void vllm::rotary_embedding_kernel<c10::BFloat16, float, true>
_packed_qk_rope_kernel""",
    "sampling": """
void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float>
void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>, unsigned int, long>>
_topk_topp_kernel
_gumbel_sample_kernel
_bias_kernel
void at::native::sbtopk::gatherTopK<c10::BFloat16, unsigned int, 2, false>
aten::exponential_""",
    "communication": """
ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)
void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>
void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(AllReduceFusionPattern)1>
void vllm::mnnvl::twoshotAllreduceKernel<8, __nv_bfloat16>""",
    "quantization": """
void vllm::scaled_fp8_quant_kernel_strided_group_shape<c10::BFloat16, c10::Float8_e4m3fn>
void vllm::cvt_fp16_to_fp4<__nv_bfloat16, false>
_per_token_group_quant_fp8""",
    "copies": """
Memcpy DtoH (Device -> Pinned)
Memset (Device)
void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda()>>
void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>, std::array<char*, 1ul>>
void vllm::vocab_embedding::vocab_parallel_embedding_kernel<c10::BFloat16>
void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, long, long, long, bool)
memcpy32_post
aten::copy_
aten::index_select""",
    "input preparation": """
_compute_slot_mappings_kernel
_prepare_pos_seq_lens_kernel
_post_update_kernel
_gather_block_tables_kernel
_apply_write_kernel""",
    "elementwise": """
triton_poi_fused__to_copy_add_cat_index_select_mul_split_split_with_sizes_sub_unsqueeze_view_1
void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel<c10::BFloat16>, true>
triton_poi_fused__to_copy_add_mul_split_sub_2
void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<long>, std::array<char*, 3ul>>""",
    "other": "something_of_nobody",
}


@pytest.mark.parametrize("kind", NAMES)
def test_kernels_have_the_names_that_people_use(kind: str) -> None:
    assert {name: kind_of(name) for name in NAMES[kind].strip().split("\n")} == dict.fromkeys(
        NAMES[kind].strip().split("\n"), kind
    )


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
    summary = kernels.answer({"folder": str(tmp_path), "decode": False})
    assert list(tmp_path.iterdir()) == [path] and (summary["device"], summary["file"]) == ("gpu", str(path))
    assert (summary["busy_us"], summary["wall_us"]) == (80.0, 100.0)
    assert summary["kernels"][0] == {"name": "marlin_moe", "calls": 2, "us": 60.0}
    rows = {row.name: (row.share, row.calls, row.mean_us) for row, _ in rows_of(summary)}
    assert rows["MoE"] == (60.0, 2, 30.0) and rows[GAPS["gpu"]] == (20.0, 0, 0.0) and rows["copies"][0] == 10.0


@pytest.mark.parametrize(("kernel", "step"), [("kernel", "gpu_user_annotation"), ("cpu_op", "user_annotation")])
def test_decode_begins_with_the_first_step_that_reads_no_prompt(tmp_path: Path, kernel: str, step: str) -> None:
    """On a GPU the steps of the CPU lie before their kernels, and count for nothing."""
    steps = [
        ("context_1(16)_generation_0(0)", 0),
        ("context_0(0)_generation_1(1)", 40),
        ("context_0(0)_generation_1(1)", 60),
    ]
    events = [event("fmha", start, 10, cat=kernel) for start in (0, 20, 40, 60)]
    events += [event(f"execute_{name}", start, 15, cat=step) for name, start in steps]
    if kernel == "kernel":
        events += [event(f"execute_{steps[1][0]}", 1, 1, cat="user_annotation")]
    written(tmp_path, events)
    for decode, calls, wall in ((False, 4, 70.0), (True, 2, 30.0)):
        summary = kernels.answer({"folder": str(tmp_path), "decode": decode})
        assert (summary["kernels"][0]["calls"], summary["wall_us"]) == (calls, wall)


def test_the_trace_itself_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "PART", 100)
    path = written(tmp_path, [event("fmha", 0, 10)])
    whole, content = path.read_bytes(), b""
    while part := kernels.answer({"file": str(path), "offset": len(content)})["part"]:
        content += base64.b64decode(part)
    assert content == whole and not path.exists()


def test_an_operator_of_the_cpu_counts_without_those_inside_of_it(tmp_path: Path) -> None:
    events = [
        event("aten::linear", 0, 100, cat="cpu_op", tid=1), event("aten::addmm", 10, 60, cat="cpu_op", tid=1),
        event("aten::copy_", 20, 10, cat="cpu_op", tid=1), event("aten::sort", 5, 50, cat="cpu_op", tid=2),
    ]  # fmt: skip
    written(tmp_path, events)
    summary = kernels.answer({"folder": str(tmp_path), "decode": False})
    assert {row["name"]: row["us"] for row in summary["kernels"]} == {
        "aten::linear": 40.0, "aten::addmm": 50.0, "aten::copy_": 10.0, "aten::sort": 50.0,
    }  # fmt: skip
    assert summary["wall_us"] == 100.0 and GAPS["cpu"] in {row.name for row, _ in rows_of(summary)}


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


def test_the_logs_word_stands_beside_what_ran() -> None:
    phase = {"device": "gpu", "wall_us": 100, "busy_us": 80, "kernels": [{"name": "marlin_moe", "calls": 4, "us": 80}]}
    lines = list(shown({"phases": {"decode": phase}, "log": ["Using 'MARLIN' Mxfp4 MoE backend\x1b[2J"]}))
    assert lines[0] == "decode: 0.1 ms on the GPU" and any(line.split()[:3] == ["MoE", "80.0", "%"] for line in lines)
    assert (
        lines[-1].startswith("beside it, the log's word: Using 'MARLIN' Mxfp4 MoE backend") and "\x1b" not in lines[-1]
    )
