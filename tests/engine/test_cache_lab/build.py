"""Has FlashInfer build modules by name, as their first use would: python build.py page vllm_comm."""

import importlib
import sys

for name in sys.argv[1:]:
    module = importlib.import_module("flashinfer.jit." + name.rpartition("_")[2])
    getattr(module, f"gen_{name}_module")().build(False)
    print("built", name, flush=True)
