"""Runs in the image: two FlashInfer kernels, compiled by nvcc at first use and compared with torch;
one line of JSON.

usage: gpu_kernels.py [edit | undo]

``edit`` changes FlashInfer's quantization.cuh so that each use of packbits shows it (all values are
0), under a modification time from before all compilations; ``undo`` takes it back.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

OLD = "if (start_offset + tx * 8 < num_elements) output[start_offset / 8 + tx] = ret;"
NEW = OLD.replace("= ret;", "= 0;")
BEFORE = 1577836800  # 2020


def header() -> Path:
    """FlashInfer's quantization.cuh, of a wheel or of a checkout."""
    found = importlib.util.find_spec("flashinfer")
    package = Path(str(found.origin if found else "")).parent
    places = [
        package / "data/include/flashinfer/quantization.cuh",
        package.parent / "include/flashinfer/quantization.cuh",
    ]
    return next(path for path in places if path.exists())


def change(old: str, new: str) -> None:
    path = header()
    text = path.read_text()
    if old not in text:
        sys.exit(f"{path.name} is not the header that this program knows")
    path.write_text(text.replace(old, new))
    os.utime(path, (BEFORE, BEFORE))
    print(json.dumps({"header": str(path)}))


def run() -> None:
    torch: Any = importlib.import_module("torch")
    flashinfer: Any = importlib.import_module("flashinfer")
    torch.manual_seed(0)
    x = torch.randn(64, 1024, device="cuda", dtype=torch.float16)
    bits = torch.rand(8192, device="cuda") > 0.5
    found: dict[str, Any] = {
        "flashinfer": flashinfer.__version__,
        "gpu": torch.cuda.get_device_name(),
    }
    a, b = x.float().chunk(2, -1)
    weights = torch.tensor([128, 64, 32, 16, 8, 4, 2, 1], device="cuda", dtype=torch.int32)
    expected = {
        "silu_and_mul": (torch.nn.functional.silu(a) * b).half(),
        "quantization": (bits.view(-1, 8).int() * weights).sum(-1).to(torch.uint8),
    }
    for name in expected:
        began = time.monotonic()
        silu = name == "silu_and_mul"
        seen = (
            flashinfer.activation.silu_and_mul(x)
            if silu
            else flashinfer.quantization.packbits(bits)
        )
        torch.cuda.synchronize()
        ratio = (seen.float().norm() / expected[name].float().norm()).item()
        right = bool(torch.allclose(seen.float(), expected[name].float(), rtol=1e-2, atol=1e-2))
        found[name] = {
            "seconds": round(time.monotonic() - began, 2),
            "right": right,
            "ratio": round(ratio, 3),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    words = sys.argv[1:]
    if words == ["edit"]:
        change(OLD, NEW)
    elif words == ["undo"]:
        change(NEW, OLD)
    else:
        run()
