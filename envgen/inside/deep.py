"""Runs inside the container: imports a package, or compiles and runs a kernel."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import tempfile
import time
from typing import Iterable

from envgen.inside.common import Doc, number_in


def import_of(package: str, names: Iterable[str]) -> Doc:
    """An import, and those of ``names`` that it does not give; vLLM lists those that it imports
    late.
    """
    module = importlib.import_module(package)
    there = {*vars(module), *getattr(module, "__all__", ())}
    return {
        "version": str(getattr(module, "__version__", "")),
        "file": getattr(module, "__file__", None) or "",
        "lacks": [name for name in names if name not in there],
    }


def ask_kernel() -> Doc:
    """Compile and run FlashInfer's smallest kernel in a temporary cache, and compare with torch."""
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        return {"skipped": f"torch {torch.__version__} for CUDA {torch.version.cuda} finds no GPU"}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FLASHINFER_WORKSPACE_BASE"] = (
            folder  # else an already compiled kernel would be used
        )
        flashinfer = importlib.import_module("flashinfer")
        torch.manual_seed(0)
        x = torch.randn(4, 256, device="cuda", dtype=torch.float16)
        began = time.monotonic()
        got = flashinfer.activation.silu_and_mul(x)
        torch.cuda.synchronize()
        seconds = time.monotonic() - began
        wanted = torch.nn.functional.silu(x[:, :128].float()) * x[:, 128:].float()
        worst = float((got.float() - wanted).abs().max())
    return {
        "kernel": "silu_and_mul",
        "seconds": round(seconds, 1),
        "worst": worst,
        "right": worst < 0.02,
    }


def short_of(least: int) -> str:
    """What is said where less memory is available: a server beside it may need the rest."""
    free = number_in("/proc/meminfo", "MemAvailable:") << 10
    if not free or free >= least:
        return ""
    return f"{free / 2**30:.1f} GiB of memory are available"


def answer(request: Doc) -> Doc:
    """Imports the ``package``, or runs the kernel. One that hangs, exits or crashes is the answer,
    too.
    """
    if sys.path and sys.path[0] == "":
        del sys.path[0]  # as for a console script: without the current folder
    short = short_of(request.get("least", 0))
    if short:
        return {"skipped": short}
    began = time.monotonic()
    package = request.get("package")
    result = import_of(package, request.get("names", ())) if package else ask_kernel()
    return {"answer": result, "seconds": round(time.monotonic() - began, 2)}
