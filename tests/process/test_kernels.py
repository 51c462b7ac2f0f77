"""The references of envgen/inside/kernels.py, on CPU: against vLLM's own kernel, and against planted errors.

The environment is scripts/predict-env's: vLLM's released code with PyTorch's CPU build. Triton's interpreter runs the
kernel that a GPU would run. What needs a GPU stands in docs/benchmarking.md.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from test_predict import environment

INSIDE = Path(__file__).parents[2] / "envgen" / "inside"
SMALL = """
import json, sys, types
import torch, triton.backends
# vLLM leaves Triton alone where no driver is active; the interpreter needs none.
driver = types.SimpleNamespace(is_active=lambda: True)
triton.backends.backends = {"interpreter": types.SimpleNamespace(driver=driver)}
import kernels as K
K.DEVICE, K.POOL, K.CONTEXT, K.HIDDEN, K.EXPERTS, K.WINDOW = "cpu", 64, 200, 64, 8, 16
torch.manual_seed(0)
found = {}
"""
ATTENTION = """
for kind in ("decode", "prefill"):
    for window in (0, K.WINDOW):
        case = K.Sequences(torch, kind, 5, window)
        for name in "q", "k", "v", "sinks":  # the interpreter knows no bfloat16
            setattr(case, name, getattr(case, name).half())
        want = K.attention_in_torch(torch, case)
        row = {"vllm": K.difference(torch, K.vllm_attention(torch)(case)(), want)}

        def planted(name, value):
            right = getattr(case, name)
            setattr(case, name, value(right))
            row[name] = K.difference(torch, K.attention_in_torch(torch, case), want)
            setattr(case, name, right)

        planted("sinks", lambda sinks: sinks - 30)
        planted("v", lambda v: v.roll(1, 1))
        planted("lengths", lambda lengths: [length - 1 for length in lengths])
        if window:
            planted("window", lambda window: window + 1)
        found[kind + str(window)] = row
"""
MOE = """
weights, case = K.Mxfp4(torch), K.Tokens(torch, 40)
want = K.moe_in_torch(torch, case, weights)
# Token by token, as a formula is read.
slow = torch.stack([sum(gate * weights.feed(torch, x[None].double(), int(e))[0] for gate, e in zip(gates, experts))
                    for x, gates, experts in zip(case.x, case.gates, case.experts)])
found["token by token"] = K.difference(torch, slow, want)
for name, value, scale in (("ALPHA", 1.0, 1), ("LIMIT", 1e9, 8)):
    right, case.x = getattr(K, name), case.x * scale  # the limits bind only what is large
    want = K.moe_in_torch(torch, case, weights)
    setattr(K, name, value)
    found[name] = K.difference(torch, K.moe_in_torch(torch, case, weights), want)
    setattr(K, name, right)
case.gates = case.gates.flip(1)
found["other gates"] = K.difference(torch, K.moe_in_torch(torch, case, weights), want)
spoilt = want.clone()
spoilt[0, 0] = float("nan")
found["NaN"] = K.difference(torch, spoilt, want)
"""
NO_GPU = """
for kernel in ("attention", "moe"):
    found[kernel] = K.answer({"kernel": kernel, "tokens": [4], "seconds": 60})
"""


def run(program: str, release: str = "0.32.0") -> Any:
    env = {**os.environ, "PYTHONPATH": str(INSIDE), "TRITON_INTERPRET": "1", "VLLM_LOGGING_LEVEL": "ERROR",
           "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"}  # fmt: skip
    argv = [str(environment(release)), "-c", SMALL + program + "\nprint(json.dumps(found))"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("release", ["0.14.0", "0.32.0"])
def test_attention_agrees_with_vllm_s_kernel_and_not_with_planted_errors(release: str) -> None:
    for kind, row in run(ATTENTION, release).items():
        assert row.pop("vllm") < 0.002, kind
        assert len(row) >= 3 and min(row.values()) > 0.02, (kind, row)


def test_moe_and_its_planted_errors() -> None:
    found = run(MOE)
    assert found.pop("NaN") is None and found.pop("token by token") < 1e-9
    assert len(found) == 3 and min(found.values()) > 0.02, found


def test_without_a_gpu_nothing_counts_as_checked() -> None:
    for kernel, found in run(NO_GPU).items():
        reason = {"by": "", "why": "no GPU in this container", "failed": False}
        assert found == {"kernel": kernel, "gpu": "", "rows": [], "not_run": [reason]}
