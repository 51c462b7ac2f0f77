"""Which backend the real CuTe DSL picks for a driver, and that envgen says the same."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from releases import TOP, environment

ASK = """\
import json, pathlib, sys
from envgen.inside.jit.libraries import backend_for, backends
from cutlass._mlir._mlir_libs import _cutlass_ir
print(json.dumps([backends(), backend_for(sys.argv[1], backends()), pathlib.Path(_cutlass_ir.__file__).name]))
"""


# The driver, and the CUDA that it supports, as cuDriverGetVersion has it.
@pytest.mark.parametrize(("driver", "cuda"), [("575.57.08", 12090), ("580.142", 13000), ("590.44.01", 13010)])
def test_the_newest_that_the_driver_supports(tmp_path: Path, driver: str, cuda: int) -> None:
    text = f"int cuDriverGetVersion(int *version) {{ *version = {cuda}; return 0; }}"
    words = ["gcc", "-shared", "-x", "c", "-", "-o", str(tmp_path / "libcuda.so.1")]
    subprocess.run(words, input=text, text=True, check=True)
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(TOP)}
    done = subprocess.run([environment("0.33.0"), "-c", ASK, driver], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    installed, said, loaded = json.loads(done.stdout.splitlines()[-1])
    assert len(installed) > 1 and said in installed and loaded.startswith(f"_cutlass_ir.{said}.")
