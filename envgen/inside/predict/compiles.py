"""The large module that FlashInfer compiles for the experts: its name, and how many objects it has."""

from __future__ import annotations

import importlib
import re
from typing import Any, Dict, Optional

Doc = Dict[str, Any]


def large_module(report: Doc) -> Optional[Doc]:
    """None where other experts were chosen, or this FlashInfer can't be asked.

    FlashInfer's own generator names the sources. Nothing is compiled; what it writes goes into the
    folder FLASHINFER_WORKSPACE_BASE.
    """
    backend = str((report["asked"].get("moe") or {}).get("backend", ""))
    if not re.search(r"FLASHINFER_CUTLASS|FI_.*CUTLASS|_FI_MXFP4_BF16", backend):
        return None
    major, minor = report["platform"]["capability"]
    sm = "120" if major == 12 else "%d%d" % (major, minor)
    try:
        jit = importlib.import_module("flashinfer.jit.fused_moe")
        spec = getattr(jit, "gen_cutlass_fused_moe_sm%s_module" % sm)()
    except Exception:  # other releases, or none of its own
        return None
    if getattr(spec, "is_aot", False):
        return None
    return {"module": str(spec.name), "objects": len(spec.sources)}
