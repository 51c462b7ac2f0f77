"""The large module that FlashInfer compiles for the experts: its name, and how many objects it has."""

from __future__ import annotations

import importlib
import re
from typing import Any

from envgen.inside.common import Doc

ALL_REDUCE = (
    "FlashInfer compiles trtllm_mnnvl_comm at the first start, for vLLM's fused all-reduce over %d GPUs; ahead of it:"
    " `envgen cache warm trtllm_mnnvl_comm`"
)


def all_reduce(config: Any) -> list[str]:
    """A note on the module of vLLM's fused all-reduce, where the release turns that on by itself or
    is told to. Among machines it needs GPUs of capability 10.0, which have none without NVLink.
    """
    parallel = config.parallel_config
    fused = getattr(config.compilation_config.pass_config, "fuse_allreduce_rms", False)
    one_machine = int(getattr(parallel, "nnodes", 1) or 1) == 1
    return [ALL_REDUCE % parallel.tensor_parallel_size] if fused and one_machine else []


def large_module(report: Doc) -> Doc | None:
    """None where other experts were chosen, or this FlashInfer can't be asked.

    FlashInfer's own generator names the sources. Nothing is compiled; what it writes goes into the
    folder FLASHINFER_WORKSPACE_BASE.
    """
    moe = report["asked"].get("moe") or {}
    backend = str(moe.get("backend", ""))
    if not re.search(r"FLASHINFER_CUTLASS|FI_.*CUTLASS|_FI_MXFP4_BF16", backend):
        return None
    major, minor = report["platform"]["capability"]
    sm = "120" if major == 12 else f"{major}{minor}"
    try:
        jit = importlib.import_module("flashinfer.jit.fused_moe")
        spec = getattr(jit, f"gen_cutlass_fused_moe_sm{sm}_module")()
    except Exception:  # other releases, or none of its own
        return None
    if getattr(spec, "is_aot", False):
        return None
    return {"module": str(spec.name), "objects": len(spec.sources)}
