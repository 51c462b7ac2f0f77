"""What the gate reads: command lines, the machine's memory, what it has learned."""

from __future__ import annotations

from pathlib import Path

import pytest
from gate_program import gate

MIB, GIB = 1 << 20, 1 << 30
NVCC = ["/usr/local/cuda/bin/nvcc", "-c", "x.cu"]


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("nvcc -c a.cu -o a.o", True),
        ("nvcc -dc a.cu -o a.o", True),
        ("nvcc --generate-dependencies-with-compile --dependency-output x.d -c a.cu -o a.o", True),
        ("g++ -c a.cpp -o a.o", True),
        ("nvcc --version", False),
        ("nvcc -shared a.o -o a.so", False),
        ("c++ -E -c a.cpp", False),
        ("nvcc", False),
    ],
)
def test_only_compilations_wait(argv: str, expected: bool) -> None:
    assert gate.is_compilation(argv.split()) is expected


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("fused_moe_120/a.generated.cuda.o", ("fused_moe_120", "a.generated.cuda.o")),
        ("/c/0.7/121a/cached_ops/page/csrc_page.cuda.o", ("page", "csrc_page.cuda.o")),
        ("CMakeFiles/_C.dir/csrc/attention/paged.cu.o", ("_C", "csrc+attention+paged.cu.o")),
        ("a.o", ("none", "a.o")),
        ("../..", ("none", "none")),
    ],
)
def test_module_and_object_are_parts_of_a_path(output: str, expected: tuple[str, str]) -> None:
    assert gate.object_of(["nvcc", "-c", "x.cu", "-o", output]) == expected


def test_known_heavy_objects_and_defaults(tmp_path: Path) -> None:
    def peak(name: str, *more: str) -> float:
        found: int = gate.expected([*NVCC, "-o", f"fused_moe_120/{name}", *more], [str(tmp_path)])[0]
        return found / GIB

    assert peak("cutlass_kernel_file_gemm_grouped_sm120_M128_BS_group2.generated.cuda.o") > 10.2
    assert peak("cutlass_kernel_file_gemm_grouped_sm80_M16_group1.generated.cuda.o") > 6.5
    assert peak("cutlass_kernel_file_gemm_sm90_M128_group1.generated.cuda.o") < 1.2
    assert peak("other.cuda.o") == 4
    two = ("-gencode=arch=a", "-gencode=arch=b", "--threads", "4")
    assert peak("other.cuda.o", *two) == 8
    assert gate.expected(["g++", "-c", "a.cpp", "-o", "m/a.o"], [])[0] == 1536 * MIB


def test_what_was_learned_is_kept_by_compiler_module_and_object(tmp_path: Path) -> None:
    (tmp_path / "cuda/bin").mkdir(parents=True)
    (tmp_path / "cuda/version.json").write_text('{"cuda_nvcc": {"version": "13.0.88"}}')
    (tmp_path / "cuda/bin/nvcc").touch()
    argv = [str(tmp_path / "cuda/bin/nvcc"), "-c", "x.cu", "-o", "page/page.cuda.o"]
    place = str(tmp_path / "state")
    gate.learn(place, argv, 300 * MIB, 12.34)
    assert (tmp_path / "state/learned/nvcc-13.0.88/page/page.cuda.o").read_text() == "300 12.3\n"
    assert gate.expected(argv, [place]) == (300 * MIB, 12.3)
    (tmp_path / "cuda/version.json").write_text('{"cuda_nvcc": {"version": "13.1.1"}}')
    assert gate.expected(argv, [place])[0] == 4 * GIB


@pytest.mark.parametrize("content", ["", "x y", "300", "-5 1", "1e999 1", "0 0", "99999999999 1", "\0\0 \0", "300 nan"])
def test_garbage_was_not_learned(tmp_path: Path, content: str) -> None:
    argv = ["nvcc", "-c", "x.cu", "-o", "page/page.cuda.o"]
    path = tmp_path / "learned" / gate.compiler_of(argv) / "page/page.cuda.o"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    assert gate.expected(argv, [str(tmp_path)])[0] == 4 * GIB


def machine(root: Path, total: int, available: int, cgroup: str = "0::/\n", files: dict[str, str] | None = None) -> str:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(
        f"MemTotal: {total >> 10} kB\nMemFree: 1 kB\nMemAvailable: {available >> 10} kB\n"
    )
    (root / "proc/self/cgroup").write_text(cgroup)
    for name, text in (files or {}).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return str(root)


def test_memory_of_the_machine(tmp_path: Path) -> None:
    assert gate.memory(machine(tmp_path, 120 * GIB, 30 * GIB)) == (30 * GIB, 120 * GIB)
    assert gate.memory(str(tmp_path / "none")) == (0, 0)


def test_memory_below_a_limit_of_version_2(tmp_path: Path) -> None:
    top = "sys/fs/cgroup/"
    files = {top + "cgroup.controllers": "memory", top + "memory.max": str(16 * GIB),
             top + "memory.current": str(10 * GIB), top + "memory.stat": f"inactive_file {2 * GIB}\n"}  # fmt: skip
    assert gate.memory(machine(tmp_path, 120 * GIB, 30 * GIB, files=files)) == (8 * GIB, 16 * GIB)


def test_memory_below_a_limit_of_version_1(tmp_path: Path) -> None:
    top = "sys/fs/cgroup/memory/"
    files = {top + "docker/x/memory.limit_in_bytes": str(16 * GIB), top + "docker/x/memory.usage_in_bytes": str(GIB),
             top + "memory.limit_in_bytes": str(2**63 - 4096), top + "memory.usage_in_bytes": "0"}  # fmt: skip
    found = gate.memory(machine(tmp_path, 120 * GIB, 30 * GIB, "5:memory:/docker/x\n", files))
    assert found == (15 * GIB, 16 * GIB)


def test_cores_below_a_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate.os, "sched_getaffinity", lambda _pid: range(20))
    monkeypatch.delenv("ENVGEN_GATE_CORES", raising=False)
    files = {"sys/fs/cgroup/cgroup.controllers": "cpu", "sys/fs/cgroup/cpu.max": "450000 100000\n"}
    assert gate.cores(machine(tmp_path, GIB, GIB, files=files)) == 4
    assert gate.cores(str(tmp_path / "none")) == 20
    monkeypatch.setenv("ENVGEN_GATE_CORES", "7")
    assert gate.cores(str(tmp_path / "none")) == 7


def test_a_budget_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVGEN_GATE_MEMORY", "40")
    root = machine(tmp_path, 120 * GIB, 100 * GIB)
    busy = gate.Entry(state="running", current=15 * GIB)
    assert gate.room([busy, gate.Entry(current=9 * GIB)], root) == (25 * GIB, GIB, 40 * GIB)
    for wrong in ("", "x", "-3", "nan", "inf"):
        monkeypatch.setenv("ENVGEN_GATE_MEMORY", wrong)
        assert gate.room([], root) == (100 * GIB, 6 * GIB, 120 * GIB), wrong


def test_a_compiler_larger_than_the_memory_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "memory", lambda _root="": (6 * GIB, 8 * GIB))
    monkeypatch.delenv("ENVGEN_GATE_MEMORY", raising=False)
    text = gate.too_large("fused_moe_120/a.o", 10 * GIB)
    assert text.startswith("compile-gate: fused_moe_120/a.o is expected to need 10.0 GiB, and there are 8.0 GiB in all")
    assert "\n" not in text and "stop what uses memory" in text
    assert gate.too_large("a", 7 * GIB) == ""


def test_one_line_for_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"running": 12, "waiting": 40, "paused": 1, "used": 30 * GIB, "free": 61.3 * GIB, "total": 119.7 * GIB,
           "left": 380.0, "compilers": []}  # fmt: skip
    assert gate.sentence(now) == (
        "compilers: 12 running, 40 waiting, 1 paused; "
        "30.0 GiB used by compilers, 61.3 of 119.7 GiB free; about 6 min to go"
    )
