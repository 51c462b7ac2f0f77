"""What builds of CUDA code do with envgen's settings: vLLM's own arithmetic of jobs, and the real nvcc, twice.

No Docker and no GPU: nvcc compiles for any architecture. It is the machine's own, or that of the package index.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from patch_sources import TOP, tree

from envgen.profile.load import load_project
from envgen.render.environment import nvcc_threads

GATE, SCRIPT = TOP / "docker/runtime/bin/compile-gate", TOP / "docker/build/build-wheel"
ENTRYPOINT = TOP / "docker/runtime/bin/entrypoint"
APPEND = "export NVCC_APPEND_FLAGS"
BACKEND = """\
import os, subprocess, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    subprocess.check_call([os.environ["NVCC"], "-arch=sm_121a", "-c", "kernel.cu", "-o", "kernel.o"])
    name = "kernel-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        wheel.write("kernel.o", "kernel/kernel.o")
        wheel.writestr("kernel-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: kernel\\nVersion: 1.0\\n")
        lines = "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
        wheel.writestr("kernel-1.0.dist-info/WHEEL", lines)
        wheel.writestr("kernel-1.0.dist-info/RECORD", "")
    return name
"""
KERNEL = """\
template <class T> __global__ void add(T *x, T y) { x[threadIdx.x] += y; }
template __global__ void add(float *, float);
"""


def jobs_of_vllm(max_jobs: str, threads: str) -> int:
    """What setup.py of vLLM 0.14.0 makes of MAX_JOBS and NVCC_THREADS, by its own function."""
    (content,) = (file.data for file in tree("vllm", "0.14.0").read({"setup.py"}).values())
    module = ast.parse(content)
    (function,) = (n for n in ast.walk(module) if isinstance(n, ast.FunctionDef) and n.name == "compute_num_jobs")
    values: dict[str, Any] = {
        "envs": SimpleNamespace(MAX_JOBS=max_jobs, NVCC_THREADS=threads),
        "os": os,
        "logger": SimpleNamespace(info=print, warning=print),
        "_is_cuda": lambda: True,
        "CUDA_HOME": "/usr/local/cuda",
        "get_nvcc_cuda_version": lambda: 13,
        "Version": lambda _: 11.2,
    }
    exec(compile(ast.Module([function], []), "setup.py", "exec"), values)
    found: tuple[int, int] = values["compute_num_jobs"](None)
    return found[0]


def test_vllm_keeps_all_cores_busy_with_what_the_gate_gives_to_ninja() -> None:
    [jobs] = set(re.findall(r'MAX_JOBS="\$\{\w+:-(\d+)\}"', SCRIPT.read_text() + ENTRYPOINT.read_text()))
    for profile in load_project(file=TOP / "envgen.yaml", local=False).project.profiles.values():
        assert jobs_of_vllm(jobs, str(nvcc_threads(profile))) == 128, profile.name
    assert jobs_of_vllm(jobs, "4") == 32  # several archs: still more than the cores of a GB10
    assert jobs_of_vllm("14", "4") == 3  # what a number from free memory came to


@pytest.fixture(scope="module")
def nvcc(tmp_path_factory: pytest.TempPathFactory) -> str:
    found = shutil.which("nvcc")
    if found:
        return found
    folder = tmp_path_factory.mktemp("nvcc")
    names = ["nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-runtime", "nvidia-cuda-cccl"]
    wanted = [f"{name}==13.0.*" for name in names]
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--target", str(folder), *wanted], check=True)
    return str(next(folder.glob("nvidia/cu13/bin/nvcc")))


def wheel(folder: Path, nvcc: str, *, append: bool) -> bytes:
    """The object in a wheel that the script of the builds makes, always in the same place."""
    source, output = folder / "source", folder / "out"
    for path in (source, output):
        shutil.rmtree(path, ignore_errors=True)
    (source / "backend").mkdir(parents=True)
    (source / "kernel.cu").write_text(KERNEL)
    (source / "backend/backend.py").write_text(BACKEND)
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["backend"]\n'
        '[project]\nname = "kernel"\nversion = "1.0"\n'
    )
    lines = (
        SCRIPT.read_text()
        .replace("/run/envgen/lib/compile-gate", str(GATE))
        .replace("/run/envgen", str(folder))
        .splitlines()
    )
    assert sum(line.startswith(APPEND) for line in lines) == 1
    script = folder / "build-wheel"
    script.write_text("\n".join(line for line in lines if append or not line.startswith(APPEND)) + "\n")
    argv = ["sh", str(script), sys.executable, str(source), str(output)]
    done = subprocess.run(
        argv, env={**os.environ, "NVCC": nvcc}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, textwrap.shorten(done.stdout + done.stderr, 4000)
    with zipfile.ZipFile(next(output.glob("*.whl"))) as file:
        return file.read("kernel/kernel.o")


def test_nvcc_gives_the_same_bytes_in_each_build(nvcc: str, tmp_path: Path) -> None:
    first, again = (wheel(tmp_path, nvcc, append=True) for _ in range(2))
    assert first == again
    # Without the flag the name of a temporary file is in the object, and its process ID in that.
    temporary = rb"tmpxft_[0-9a-f]{8}_"
    assert re.search(temporary, wheel(tmp_path, nvcc, append=False)) and not re.search(temporary, first)
