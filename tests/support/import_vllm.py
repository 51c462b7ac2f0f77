"""Runs in a release's Python (warm_python.py): imports what each question of `envgen predict` imports, vLLM included.

The platform that reports a GB10 is put in place first, as the questions do, which are asked in forks of this process.
What is only envgen's own is undone: a question brings its program along.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

TOP = str(Path(__file__).parents[2])
GPU = {"name": "NVIDIA GB10", "capability": [12, 1], "memory": 120 << 30}
if os.environ.get("ENVGEN_TEST_GPU") == "9.0":
    GPU = {"name": "NVIDIA H100 80GB HBM3", "capability": [9, 0], "memory": 80 << 30}
# A release lacks some of them.
MODULES = (
    "torch._inductor.lowering", "torch._inductor.compile_fx", "torch._dynamo.repro.after_dynamo",
    "transformers.models.auto.image_processing_auto", "transformers.models.auto.modeling_auto",
    "vllm.engine.arg_utils", "vllm.model_executor.layers.fused_moe", "vllm.model_executor.models",
    "flashinfer", "flashinfer.fused_moe", "compressed_tensors.quantization",
)  # fmt: skip


def prepare(folder: str) -> None:
    sys.path.insert(0, TOP)
    from envgen.inside.predict import machine, release

    os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_CACHE_ROOT=folder)
    found: Any = {"asked": {}, "stubs": [], "notes": [], "refusals": [], "unasked": []}
    lines = release.Lines()
    release.release(found, lines)
    machine.driver(found)
    machine.unloadable(found)
    machine.set_platform({"gpu": GPU}, found, folder)
    for name in MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    with contextlib.suppress(release.NotAskable):
        release.named("parser")
    with contextlib.suppress(ImportError, AttributeError):
        kinds = importlib.import_module("vllm.model_executor.layers.quantization")
        for kind in kinds.QUANTIZATION_METHODS:
            with contextlib.suppress(Exception):  # of another platform, say
                kinds.get_quantization_config(kind)
    torch: Any = importlib.import_module("torch")
    for stub in found["stubs"]:  # each question puts its own in place, and sees what it is asked
        first, _, rest = stub["name"].partition("torch.ops.")
        if not first:
            space, _, name = rest.partition(".")
            delattr(getattr(torch.ops, space), name)
    release.forget()
    logger: Any = logging.getLogger("vllm")
    del logger.removeHandler
    logger.removeHandler(lines)
    sys.path.remove(TOP)
    for name in [one for one in sys.modules if one.partition(".")[0] == "envgen"]:
        del sys.modules[name]
    sys.stdout.flush()


with tempfile.TemporaryDirectory() as made:
    prepare(made)
