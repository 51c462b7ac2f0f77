"""Has FlashInfer build modules by name, as their first use would: python build.py page quantization."""

import importlib
import sys

for name in sys.argv[1:]:
    module = importlib.import_module(f"flashinfer.jit.{name}")
    getattr(module, f"gen_{name}_module")().build(False)
    print("built", name, flush=True)
