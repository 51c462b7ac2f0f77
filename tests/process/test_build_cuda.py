"""What builds of CUDA code do with envgen's settings: vLLM's own arithmetic of jobs, and the real nvcc, twice.

No Docker and no GPU: nvcc compiles for any architecture. It is the machine's own, or that of the package index.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import struct
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from patch_sources import TOP, read

from envgen.engine.git import git
from envgen.patches.series import load_series
from envgen.patches.source import put
from envgen.profile.load import load_project
from envgen.render.environment import nvcc_threads

pytestmark = pytest.mark.nightly

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
    (content,) = (file.data for file in read("vllm", "0.14.0", "setup.py".__eq__).values())
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


def from_index(program: str, packages: list[str], folder: Path) -> str:
    """A program of this machine, else of the package index."""
    found = shutil.which(program)
    if found:
        return found
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--target", str(folder), *packages], check=True)
    return str(next(path for path in folder.rglob(f"bin/{program}") if path.is_file()))


@pytest.fixture(scope="module")
def nvcc(tmp_path_factory: pytest.TempPathFactory) -> str:
    names = ["nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-runtime", "nvidia-cuda-cccl"]
    return from_index("nvcc", [f"{name}==13.0.*" for name in names], tmp_path_factory.mktemp("nvcc"))


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


LISTS = ("MARLIN_ARCHS", "MARLIN_BF16_ARCHS", "MARLIN_MOE_ARCHS", "MARLIN_FP8_ARCHS")


def vllm_sources(folder: Path, *, patched: bool) -> Path:
    """CMakeLists.txt, setup.py, cmake/ and csrc/ of 0.14.0, with the shipped patches or without."""
    source = folder / ("patched" if patched else "plain")
    names = {patch_file for patch in load_series(TOP, "vllm").patches for patch_file in patch.touches}
    folders = ("cmake/", "csrc/moe/marlin_moe_wna16/", "csrc/quantization/gptq_marlin/", "csrc/core/")
    source.mkdir(parents=True)
    put(source, read("vllm", "0.14.0", lambda name: name in names or name.startswith(folders)))
    if patched:
        for patch in load_series(TOP, "vllm").patches:
            git(["apply", str(TOP / "patches/vllm" / patch.name)], cwd=source)
    return source


def archs_of(source: Path, cmake: str) -> dict[str, str]:
    """What vLLM's own CMake makes of its lists for 12.1a and nvcc 13."""
    lines = (source / "CMakeLists.txt").read_text().splitlines()
    [supported] = [line for line in lines if "set(CUDA_SUPPORTED_ARCHS" in line and "11.0" in line]
    asked = [line for line in lines for name in LISTS if f"cuda_archs_loose_intersection({name} " in line]
    assert len(asked) == len(LISTS)
    script = source / "archs.cmake"
    script.write_text(
        "\n".join(
            [
                "cmake_minimum_required(VERSION 3.20)",
                f"include({source}/cmake/utils.cmake)",
                supported,
                'cuda_archs_loose_intersection(CUDA_ARCHS "${CUDA_SUPPORTED_ARCHS}" "12.1a")',
                *asked,
                *(f'message("{name}=${{{name}}}")' for name in ("CUDA_ARCHS", *LISTS)),
            ]
        )
    )
    done = subprocess.run([cmake, "-P", str(script)], capture_output=True, text=True, check=True)
    return dict(re.findall(r"^(\w+)=(.*)$", done.stderr, re.M))


def marlin_object(source: Path, nvcc: str, archs: str) -> Path:
    """The first of the kernels of MXFP4 MoE in bfloat16, compiled as CMake would for these archs."""
    folder = source / "csrc/moe/marlin_moe_wna16"
    subprocess.run([sys.executable, "generate_kernels.py", "12.0"], cwd=folder, check=True, capture_output=True)
    head, first, *_ = (folder / "sm80_kernel_bfloat16_fe2m1f_bfloat16.cu").read_text().split("template __global__")
    (folder / "one.cu").write_text(f"{head}template __global__{first}}}\n")
    torch = source / "torch_headers"  # the kernels use nothing of torch but this macro
    for name in ("torch/all.h", "torch/library.h", "ATen/cuda/CUDAContext.h", "c10/cuda/CUDAGuard.h"):
        (torch / name).parent.mkdir(parents=True, exist_ok=True)
        (torch / name).write_text("#pragma once\n")
    standard = ("cstdint", "stdexcept", "string", "tuple", "type_traits", "variant", "vector")
    (torch / "torch/library.h").write_text(
        "#pragma once\n"
        + "".join(f"#include <{name}>\n" for name in standard)
        + "#define TORCH_CHECK(condition, ...) ((void)(condition))\n"
    )
    (torch / "torch/all.h").write_text("#include <torch/library.h>\n")
    flags = []
    for arch in archs.split(";"):
        number = arch.removesuffix("+PTX").replace(".", "")
        codes = [f"sm_{number}", *([f"compute_{number}"] if arch.endswith("+PTX") else [])]
        flags += [f"-gencode=arch=compute_{number},code={code}" for code in codes]
    quick = ["-O0", "-Xcicc", "-O0", "-Xptxas", "-O0"]  # which code there is is asked, not how good it is
    argv = [nvcc, "-std=c++17", *quick, "--expt-relaxed-constexpr", "-static-global-template-stub=false", *flags,
            f"-I{torch}", f"-I{source}/csrc", "-c", "one.cu", "-o", "one.o"]  # fmt: skip
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "one.o"


def code_in(compiled: Path) -> set[tuple[str, int]]:
    """What cuobjdump lists: the kinds of code in an object's fat binaries, and for which architectures."""
    data, found = compiled.read_bytes(), set()
    for match in re.finditer(re.escape(b"\x50\xed\x55\xba\x01\x00\x10\x00"), data):
        at = match.end() + 8
        end = at + struct.unpack_from("<Q", data, match.end())[0]
        while at < end:
            kind, _, header, size = struct.unpack_from("<HHIQ", data, at)
            found.add(({1: "ptx", 2: "cubin"}[kind], struct.unpack_from("<I", data, at + 28)[0]))
            at += header + size
    return found


def test_marlin_is_native_code_on_a_gb10_with_the_shipped_patches(
    nvcc: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cmake = from_index("cmake", ["cmake>=3.26.1"], tmp_path_factory.mktemp("cmake"))
    found, held = {}, {}
    for patched in (False, True):
        source = vllm_sources(tmp_path, patched=patched)
        found[patched] = archs_of(source, cmake)
        held[patched] = code_in(marlin_object(source, nvcc, found[patched]["MARLIN_MOE_ARCHS"]))
    # 0.14.0 takes 12.0 for 12.1; a GB10 runs code for sm_120 as it is.
    assert found[False] == {
        "CUDA_ARCHS": "12.0", "MARLIN_ARCHS": "8.0+PTX", "MARLIN_BF16_ARCHS": "9.0+PTX", "MARLIN_MOE_ARCHS": "8.0+PTX",
        "MARLIN_FP8_ARCHS": "12.0",
    }  # fmt: skip
    assert found[True] == dict.fromkeys(found[False], "12.0")
    assert held == {False: {("ptx", 80), ("cubin", 80)}, True: {("cubin", 120)}}


@pytest.mark.parametrize(
    ("archs", "precompiled", "wanted"),
    [("12.1a", False, False), ("9.0a;12.1a", False, True), ("", False, True), ("12.1a", True, True)],
)
def test_fa3_is_built_for_hopper_only_with_the_shipped_patches(
    archs: str, precompiled: bool, wanted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ast.parse((vllm_sources(tmp_path, patched=True) / "setup.py").read_text())
    # The statements that fill ext_modules, as setup.py runs them.
    statements: list[ast.stmt] = [
        node for node in module.body if isinstance(node, ast.If) and "ext_modules" in ast.unparse(node)
    ]
    names: list[str] = []
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", archs)
    values: dict[str, Any] = {
        "ext_modules": names, "os": os, "CUDA_HOME": "/usr/local/cuda", "Version": float,
        "envs": SimpleNamespace(VLLM_USE_PRECOMPILED=precompiled), "get_nvcc_cuda_version": lambda: 13.0,
        "_is_cuda": lambda: True, "_is_hip": lambda: False, "_no_device": lambda: False,
        "_build_custom_ops": lambda: True, "CMakeExtension": lambda name, **_: name, "cmdclass": {},
        "BuildPyAndGenerateGrpc": None, "DevelopAndGenerateGrpc": None, "precompiled_build_ext": None,
        "cmake_build_ext": None,
    }  # fmt: skip
    exec(compile(ast.Module(statements[:3], []), "setup.py", "exec"), values)
    assert ("vllm.vllm_flash_attn._vllm_fa3_C" in names) is wanted
    assert "vllm.vllm_flash_attn._vllm_fa2_C" in names
