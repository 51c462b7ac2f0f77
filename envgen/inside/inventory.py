"""Runs inside the image: what dpkg and Python have installed there. Reads only."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from importlib import metadata
from typing import Any, Dict, List

from envgen.inside.common import normal

Doc = Dict[str, Any]
FIELDS = ("Package", "Version", "Architecture", "db:Status-Status")


def debian() -> List[Dict[str, str]]:
    """All packages that dpkg has installed; none where there is no dpkg."""
    form = "\t".join("${%s}" % field for field in FIELDS) + "\n"
    try:
        done = subprocess.run(["dpkg-query", "-W", "-f", form], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError:
        return []
    found = []
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        words = line.split("\t")
        if len(words) == len(FIELDS) and words[-1] == "installed":
            found.append(dict(zip(("name", "version", "arch"), words)))
    return found


def python(folders: List[str]) -> List[Dict[str, str]]:
    """All distributions, those that hide another one of their name first."""
    found: List[Dict[str, str]] = []
    seen = set()
    for distribution in importlib.metadata.distributions(path=sys.path + folders):
        name, place = distribution.metadata["Name"], str(distribution.locate_file(""))
        key = (normal(name or ""), os.path.realpath(place))
        if not name or key in seen:
            continue
        seen.add(key)
        said = distribution.metadata["License-Expression"] or ""
        found.append({"name": key[0], "version": distribution.version or "", "license": said})
    return found


def release() -> Dict[str, str]:
    """/etc/os-release as a mapping."""
    try:
        with open("/etc/os-release", encoding="utf-8", errors="replace") as file:
            pairs = [line.strip().partition("=") for line in file]
    except OSError:
        return {}
    return {key: value.strip("\"'") for key, equals, value in pairs if equals}


def everything(request: Doc) -> Doc:
    """Everything that was found, sorted by name."""
    folders = [folder for folder in request["folders"] if os.path.isdir(folder)]
    return {
        "os": release(),
        "debian": sorted(debian(), key=lambda one: (one["name"], one["arch"])),
        "distributions": sorted(python(folders), key=lambda one: (one["name"], one["version"])),
    }


WANTED = re.compile(
    r"^(torch|triton|vllm.*|flashinfer.*|transformers|sglang|llama[-_]cpp.*|nvidia[-_]cutlass.*|numpy|"
    r"fastsafetensors|xformers|flash[-_]attn|uvicorn|openai|llama[-_]benchy)$",
    re.I,
)


def of_server(_request: Doc) -> Doc:
    """Versions of the packages that matter, the GPU with its driver, and the image's inputs."""
    found: Doc = {"versions": {"python": platform.python_version()}}
    for one in metadata.distributions():
        name = one.metadata["Name"] or ""
        if WANTED.match(name):
            found["versions"][name.lower().replace("_", "-")] = one.version
    nvcc = os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin/nvcc")
    cuda = re.search(r"release ([0-9.]+)", out(nvcc, "--version"))
    if cuda:
        found["versions"]["cuda"] = cuda.group(1)
    gpu = out("nvidia-smi", "--query-gpu=name,driver_version,compute_cap,memory.total", "--format=csv,noheader")
    if gpu:
        rows = [[cell.strip() for cell in line.split(",")] for line in gpu.splitlines()]
        names = ("name", "driver", "compute_capability", "memory")
        found["gpu"] = dict({name: cell for name, cell in zip(names, rows[0])}, count=len(rows))  # noqa: C416
    try:
        with open("/opt/envgen/manifest.json", encoding="utf-8") as file:
            inputs = json.load(file).get("inputs", {})
        found["inputs"] = {key: value for key, value in inputs.items() if key.startswith(("git ", "image "))}
    except (OSError, ValueError, AttributeError):
        pass  # an image that envgen did not build
    return found


def out(*argv: str) -> str:
    """What a program printed; "" when it is not there or failed."""
    try:
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=15)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else ""


def answer(request: Doc) -> Doc:
    """``folders``: all that is installed; without them, what matters of a server."""
    return everything(request) if "folders" in request else of_server(request)
