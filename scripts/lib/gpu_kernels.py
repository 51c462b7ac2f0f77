"""Runs in the image: two FlashInfer kernels, compiled at first use and compared with torch; one line of JSON.

usage: gpu_kernels.py [edit | undo]

``edit`` changes FlashInfer's norm.cuh so that each use of the kernel shows it (values are doubled), under a
modification time from before all compilations; ``undo`` takes it back.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

OLD = "float rms_rcp = math::rsqrt(smem[0] / float(d) + eps);"
NEW = OLD.replace(";", " * 2.f;")
BEFORE = 1577836800  # 2020


def header() -> Path:
    """FlashInfer's norm.cuh, of a wheel or of a checkout."""
    found = importlib.util.find_spec("flashinfer")
    package = Path(str(found.origin if found else "")).parent
    places = [package / "data/include/flashinfer/norm.cuh", package.parent / "include/flashinfer/norm.cuh"]
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
    w = torch.randn(1024, device="cuda", dtype=torch.float16)
    found: dict[str, Any] = {"flashinfer": flashinfer.__version__, "gpu": torch.cuda.get_device_name()}
    f = x.float()
    a, b = f.chunk(2, -1)
    expected = {
        "norm": (f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + 1e-6) * w.float()).half(),
        "silu_and_mul": (torch.nn.functional.silu(a) * b).half(),
    }
    for name in expected:
        began = time.monotonic()
        seen = flashinfer.norm.rmsnorm(x, w) if name == "norm" else flashinfer.activation.silu_and_mul(x)
        torch.cuda.synchronize()
        ratio = (seen.float().norm() / expected[name].float().norm()).item()
        right = bool(torch.allclose(seen, expected[name], rtol=1e-2, atol=1e-2))
        found[name] = {"seconds": round(time.monotonic() - began, 2), "right": right, "ratio": round(ratio, 3)}
    print(json.dumps(found))


if __name__ == "__main__":
    words = sys.argv[1:]
    if words == ["edit"]:
        change(OLD, NEW)
    elif words == ["undo"]:
        change(NEW, OLD)
    else:
        run()
