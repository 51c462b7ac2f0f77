"""The shipped check of kernels, with the real FlashInfer's signatures and slow kernels in place of its own: it finds
what is right, and what is wrong. The environment is that of test_predict: PyTorch's CPU build."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest
from releases import PROFILES, TOP, environment

pytestmark = pytest.mark.nightly
CHECK = TOP / "checks" / "gpt_oss.py"
SLOW = TOP / "tests" / "support" / "kernels_on_cpu.py"


RIGHT = [("12.1", "FP8", "BF16"), ("9.0", "BF16", "FP8")]
WRONG = [("sinks", 4), ("scale", 1), ("nan", 1)]
CASES = [*((capability, "") for capability, *_ in RIGHT), *(("12.1", wrong) for wrong, _ in WRONG), ("8.0", "")]
Report = dict[str, Any]
Reports = dict[tuple[str, str], Report]


def checked(*words: str, **env: str) -> list[Report]:
    python = environment(PROFILES["prod"])
    done = subprocess.run([python, *words], env={**os.environ, **env}, capture_output=True, text=True,
                          stdin=CHECK.open() if words == ("-",) else None)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def reports() -> Reports:
    """(compute capability, what is wrong) -> the check's report."""
    words = (str(SLOW), str(CHECK), *(word for case in CASES for word in case))
    return dict(zip(CASES, checked(*words, FLASHINFER_CUDA_ARCH_LIST="12.1a"), strict=True))


@pytest.mark.parametrize(("capability", "form", "other"), RIGHT)
def test_right_kernels_are_as_torch(reports: Reports, capability: str, form: str, other: str) -> None:
    """FP8's own rounding is below the tolerance; what the GPU does not have is not run."""
    found = reports[capability, ""]
    assert [one["severity"] for one in found["findings"]] == ["ok"] * 5 + ["info"]
    assert f"MXFP4 x {form}: as torch" in found["findings"][-2]["title"]
    assert found["findings"][-1]["title"] == f"cutlass_fused_moe MXFP4 x {other}: not run"
    rows = found["rows"]
    assert [one["tokens"] for one in rows] == [1, 5] * 5
    assert all(0 <= one["error"] < 0.02 and one["microseconds"] == [1.0, 2.0, 3.0] for one in rows)
    assert found["modules"]["cutlass_fused_moe"] == "fused_moe_120"


@pytest.mark.parametrize(("wrong", "kernels"), WRONG)
def test_wrong_kernels_are_found(reports: Reports, wrong: str, kernels: int) -> None:
    found = reports["12.1", wrong]["findings"]
    bad = [one for one in found if one["severity"] == "error"]
    assert len(bad) == kernels and all("wrong results" in one["title"] and "M=5" in one["seen"] for one in bad)
    assert ("NaN or infinity" in bad[0]["seen"]) == (wrong == "nan")


def test_a_gpu_without_such_kernels(reports: Reports) -> None:
    last = reports["8.0", ""]["findings"][-1]
    assert last["severity"] == "info" and "8.0" in last["seen"]


def test_one_kernel_at_one_number_of_tokens() -> None:
    env = {"FLASHINFER_CUDA_ARCH_LIST": "12.1a", "ENVGEN_CHECK_KERNEL": "Decode, window", "ENVGEN_CHECK_TOKENS": "5"}
    (found,) = checked(str(SLOW), str(CHECK), "12.1", "", **env)
    assert {one["kernel"].rpartition(" ")[0] for one in found["rows"]} == {"attention with sinks, decode, window"}
    assert [one["severity"] for one in found["findings"] if "not run" not in one["title"]] == ["ok"]


def test_without_a_gpu_and_a_compiler_the_report_says_not_run() -> None:
    """The script as envgen sends it."""
    [found] = checked("-", CUDA_HOME="/nowhere", PATH="/nowhere", CUDA_VISIBLE_DEVICES="")
    (only,) = found["findings"]
    assert (only["severity"], only["title"]) == ("info", "gpt-oss's kernels: not run, not compiled")
    assert "no nvcc" in only["seen"] and found["rows"] == []
