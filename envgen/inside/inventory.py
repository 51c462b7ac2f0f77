"""Runs inside a server's container: versions, GPU and inputs, for the record of a run."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from importlib import metadata

from envgen.inside.common import Doc, read_text

WANTED = re.compile(
    r"^(torch|triton|vllm.*|flashinfer.*|transformers|sglang|llama[-_]cpp.*|nvidia[-_]cutlass.*|numpy|"
    r"fastsafetensors|xformers|flash[-_]attn|uvicorn|openai|llama[-_]benchy)$",
    re.I,
)


def answer(request: Doc) -> Doc:
    """Versions of the WANTED packages, or of ``all``, the GPU with its driver, the image's inputs,
    and the text of ``files``.
    """
    document: Doc = {"versions": {"python": platform.python_version()}}
    document["files"] = {path: read_text(path) for path in request.get("files") or ()}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"] or ""
        if WANTED.match(name) or (name and request.get("all")):
            document["versions"][name.lower().replace("_", "-")] = distribution.version
    nvcc = f"{os.environ.get('CUDA_HOME', '/usr/local/cuda')}/bin/nvcc"
    cuda = re.search(r"release ([0-9.]+)", out(nvcc, "--version"))
    if cuda:
        document["versions"]["cuda"] = cuda.group(1)
    gpu = out(
        "nvidia-smi",
        "--query-gpu=name,driver_version,compute_cap,memory.total",
        "--format=csv,noheader",
    )
    if gpu:
        rows = gpu.splitlines()
        names = ("name", "driver", "compute_capability", "memory")
        cells = [cell.strip() for cell in rows[0].split(",")]
        document["gpu"] = dict(zip(names, cells), count=len(rows))
    try:
        with open("/opt/envgen/manifest.json", encoding="utf-8") as file:
            inputs = json.load(file).get("inputs", {})
        document["inputs"] = {
            key: value for key, value in inputs.items() if key.startswith(("git ", "image "))
        }
    except (OSError, ValueError, AttributeError):
        pass  # an image that envgen did not build
    return document


def out(*argv: str) -> str:
    """The stdout of a program; "" where it is missing or fails."""
    try:
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=15)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else ""
