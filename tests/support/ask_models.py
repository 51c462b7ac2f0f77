"""Runs in a release's Python: asks it about many models, each in a fork of one process that has imported vLLM.

Each line of the standard input is [name, request], each of the output that begins with @@ [name, answer]. The platform
of the first request is put in place first, as `envgen predict` does; the answers are those of the same program. A
request may have variables of its own (``env``).
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path[:] = [str(Path(__file__).parents[2]), *(one for one in sys.path if one != str(Path(__file__).parent))]
from envgen.inside.predict import machine, release  # noqa: E402
from envgen.inside.predict import main as asked  # noqa: E402

# What each question imports anyway; a release lacks some of them.
MODULES = (
    "torch._inductor.lowering", "torch._inductor.compile_fx", "torch._dynamo.repro.after_dynamo",
    "transformers.models.auto.image_processing_auto", "transformers.models.auto.modeling_auto",
    "vllm.engine.arg_utils", "vllm.model_executor.layers.fused_moe", "vllm.model_executor.models",
    "flashinfer", "flashinfer.fused_moe", "compressed_tensors.quantization",
)  # fmt: skip


def main() -> None:
    found: Any = {"asked": {}, "stubs": [], "notes": [], "refusals": [], "unasked": []}
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_CACHE_ROOT=folder)
        for number, line in enumerate(sys.stdin):
            name, request = json.loads(line)
            if number == 0:
                prepare(request, found, folder)
            if (child := os.fork()) == 0:
                os.environ.update(request.pop("env", {}))
                document = asked.answer(request)
                print("@@" + json.dumps([name, document]), flush=True)
                os._exit(0)
            os.waitpid(child, 0)


def prepare(request: Any, found: Any, folder: str) -> None:
    release.release(found, release.Lines())
    machine.driver(found, folder)
    machine.unloadable(found)
    machine.set_platform(request, found)
    for name in MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    with contextlib.suppress(release.NotAskable):
        release.named("parser")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
