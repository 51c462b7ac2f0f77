"""The shipped check of kernels on a machine without a GPU: FlashInfer's functions are stood in for by slow ones that
take what the real signatures take. Runs in the Python of a release (scripts/predict-env); argv: the check, and for each
case the compute capability and what is wrong with the kernels ("" or a word). For each a line with the check's report.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import math
import os
import sys
from typing import Any

check_file, *cases = sys.argv[1:]
spec = importlib.util.spec_from_file_location("check", check_file)
assert spec is not None and spec.loader is not None
check: Any = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check)
torch: Any = importlib.import_module("torch")
flashinfer: Any = importlib.import_module("flashinfer")
fused: Any = importlib.import_module("flashinfer.fused_moe")

for case in zip(cases[::2], cases[1::2], strict=True):
    if (child := os.fork()) == 0:
        capability, wrong = case
        break
    if os.waitpid(child, 0)[1]:
        sys.exit(1)
else:
    sys.exit()

# The same shapes, smaller: one expert is never chosen by one token, and there is padding.
check.DEVICE, check.MEMORY, check.TOKENS = "cpu", 0, (1, 5)
check.EXPERTS, check.HIDDEN, check.PADDED = 8, 96, 128
check.HEADS, check.KV_HEADS, check.CONTEXT, check.POOL, check.WINDOW = 4, 2, 40, 8, 16
check.timed = lambda _torch, run: [1.0, 2.0, 3.0] if run() is not None else []
torch.cuda.is_available = lambda: True
torch.cuda.get_device_capability = lambda: tuple(map(int, capability.split(".")))
torch.cuda.mem_get_info = lambda: (1 << 40, 1 << 40)


def bound(real: Any, *args: Any, **words: Any) -> dict[str, Any]:
    """As the release's own function would take it. TypeError where it would not."""
    found = inspect.signature(real).bind(*args, **words)
    found.apply_defaults()
    return dict(found.arguments)


# --- attention --------------------------------------------------------------------------------------------------------

RealWrapper = flashinfer.BatchAttentionWithAttentionSinkWrapper


class Wrapper:
    def __init__(self, *args: Any, **words: Any) -> None:
        self.made = bound(RealWrapper.__init__, self, *args, **words)

    def plan(self, *args: Any, **words: Any) -> None:
        self.planned = bound(RealWrapper.plan, self, *args, **words)
        assert self.planned["window_left"] == self.made["window_left"] and self.planned["causal"]

    def run(self, *args: Any, **words: Any) -> Any:
        given = bound(RealWrapper.run, self, *args, **words)
        sinks, scale = given["args"]
        keys, values = given["paged_kv_cache"]
        plan, q = self.planned, given["q"]
        out = torch.zeros_like(q, dtype=torch.double)
        rows, pages = plan["qo_indptr"].tolist(), plan["paged_kv_indptr"].tolist()
        for i, last in enumerate(plan["paged_kv_last_page_len"].tolist()):
            places = [(int(page), slot) for page in plan["paged_kv_indices"][pages[i] : pages[i + 1]]
                      for slot in range(keys.shape[1])]  # fmt: skip
            places = places[: len(places) - keys.shape[1] + last]
            for row in range(rows[i], rows[i + 1]):
                at = len(places) - (rows[i + 1] - row)
                left = plan["window_left"]
                seen = [place for n, place in enumerate(places) if n <= at and (left < 0 or n >= at - left)]
                for head in range(q.shape[1]):
                    kv = head // (q.shape[1] // keys.shape[2])
                    heavy = [math.exp(float(q[row, head].double() @ keys[p, s, kv].double()) * scale) for p, s in seen]
                    total = sum(heavy) + (0.0 if wrong == "sinks" else math.exp(float(sinks[head])))
                    for weight, (p, s) in zip(heavy, seen, strict=True):
                        out[row, head] += weight / total * values[p, s, kv].double()
        return out


# --- fused MoE --------------------------------------------------------------------------------------------------------


def number(code: int) -> float:
    """E2M1, by its bits."""
    exponent, mantissa = code >> 1 & 3, code & 1
    size = mantissa / 2 if exponent == 0 else (1 + mantissa / 2) * 2.0 ** (exponent - 1)
    return -size if code & 8 else size


NUMBERS = torch.tensor([[number(byte & 15), number(byte >> 4)] for byte in range(256)], dtype=torch.double)


def weights(codes: Any, scales: Any, expert: int) -> Any:
    values = NUMBERS[codes.view(torch.uint8)[expert].long()].flatten(1)
    powers = 2.0 ** (scales.view(torch.uint8)[expert].double() - 127)
    return values * powers.repeat_interleave(32, 1)


def mxfp8_quantize(*args: Any, **words: Any) -> Any:
    given = bound(flashinfer_mxfp8, *args, **words)
    x = given["input"].double()
    scale = torch.ones(x.shape[0], x.shape[1] // 32, dtype=torch.double)
    for row in range(x.shape[0]):
        for block in range(scale.shape[1]):
            largest = float(x[row, 32 * block : 32 * block + 32].abs().max())
            while largest / scale[row, block] > 448:
                scale[row, block] *= 2
            while largest and largest / scale[row, block] <= 224:
                scale[row, block] /= 2
    return (x / scale.repeat_interleave(32, 1)).float().to(torch.float8_e4m3fn), scale


def rounded(x: Any) -> Any:
    values, scale = mxfp8_quantize(x[None].float(), True, 32)
    return (values.double() * scale.repeat_interleave(32, 1))[0]


def cutlass_fused_moe(*args: Any, **words: Any) -> Any:
    given = bound(flashinfer_moe, *args, **words)
    hopper = given["use_w4_group_scaling"]
    assert hopper != given["use_mxfp8_act_scaling"]
    scales = given["quant_scales"][:: 1 if hopper else 2]
    x = given["input"].double()
    if not hopper:
        x = x * given["input_sf"].repeat_interleave(32, 1)
    for row in range(x.shape[0]):
        total = torch.zeros(x.shape[1], dtype=torch.double)
        for slot, expert in enumerate(given["token_selected_experts"][row].tolist()):
            first = weights(given["fc1_expert_weights"], scales[0], expert)
            second = weights(given["fc2_expert_weights"], scales[1], expert)
            if wrong == "scale":
                first[:, :32] *= 2
            up, gate = (first @ x[row] + given["fc1_expert_biases"][expert].double()).chunk(2)
            limit = float(given["swiglu_limit"][expert])
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
            alpha, beta = float(given["swiglu_alpha"][expert]), float(given["swiglu_beta"][expert])
            middle = gate / (1 + torch.exp(-alpha * gate)) * (up + beta)
            down = second @ (middle if hopper else rounded(middle)) + given["fc2_expert_biases"][expert].double()
            total += float(given["token_final_scales"][row, slot]) * down
        given["output"][row] = math.nan if wrong == "nan" else total
    return given["output"]


flashinfer_moe, flashinfer_mxfp8 = fused.cutlass_fused_moe, flashinfer.mxfp8_quantize
for owner, name, ours in (
    (flashinfer, "BatchAttentionWithAttentionSinkWrapper", Wrapper), (flashinfer, "mxfp8_quantize", mxfp8_quantize),
    (flashinfer, "block_scale_interleave", lambda scales: scales.flatten()),
    (fused, "cutlass_fused_moe", cutlass_fused_moe),
    (fused, "interleave_moe_weights_for_sm90_mixed_gemm", lambda one, kind: one if kind == "fp4" else None),
    (fused, "interleave_moe_scales_for_sm90_mixed_gemm", lambda one: one),
):  # fmt: skip
    assert callable(getattr(owner, name)), f"this release has no {name}"
    setattr(owner, name, ours)
names = {title: make().name for title, make in check.specs(torch).items()}
print(json.dumps({**check.main(), "modules": names}))
