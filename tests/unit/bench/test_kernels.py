"""What a container found out about its kernels, as verdicts: recorded on an H100, and spoilt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from envgen.bench import checks
from envgen.bench.checks import Criterion
from envgen.cli.measure.common import shown
from envgen.engine.base import ExecResult
from envgen.errors import ServiceError

RECORDED = json.loads((Path(__file__).parent / "data" / "kernels-h100.json").read_bytes())


def compare(document: Any, kernel: str = "attention") -> tuple[list[dict[str, Any]], list[Criterion]]:
    def execute(_argv: Sequence[str], stdin: bytes, _seconds: float) -> ExecResult:
        mark = json.loads(stdin)["mark"]
        return ExecResult(0, f"{mark} {json.dumps({'answer': document})}\n".encode(), b"")

    return checks.kernels(execute, "python3", kernel)


def test_what_an_h100_found() -> None:
    rows, left = compare(RECORDED["attention"])
    assert len(rows) == 48 and not left and checks.kernels_outcome(rows, left) == "passed"
    rows, left = compare(RECORDED["moe"], "moe")
    assert [row["shape"] for row in rows] == [f"M={count}" for count in checks.KERNEL_TOKENS]
    assert "fused_moe_90 is not compiled here" in left[0].seen and left[0].verdict == "not checked"
    assert checks.kernels_outcome(rows, left) == "passed"


@pytest.mark.parametrize("spoilt", [{"right": False, "error": 0.3}, {"right": None, "error": None}, {"right": 1}])
def test_one_wrong_row_fails(spoilt: dict[str, Any]) -> None:
    first, *rest = RECORDED["attention"]["rows"]
    found = compare({**RECORDED["attention"], "rows": [{**first, **spoilt}, *rest]})
    assert checks.kernels_outcome(*found) == "failed"
    wrong = [line for line in shown({"rows": found[0]}) if line.endswith("WRONG")]
    assert len(wrong) == 1 and wrong[0].startswith("attention with sinks  FlashInfer fa2  decode M=4 ")


def test_what_was_not_run_is_never_ok() -> None:
    nothing = {"kernel": "moe", "gpu": "", "rows": [], "not_run": [{"by": "", "why": "no GPU", "failed": False}]}
    rows, left = compare(nothing, "moe")
    assert rows == [] and left == [Criterion("fused MoE", "not checked", "no GPU", "torch's result")]
    assert checks.kernels_outcome(rows, left) == "not checked" and checks.kernels_outcome([], []) == "not checked"
    raised = {**nothing, "not_run": [{"by": "vLLM Triton", "why": "OutOfResources: shared memory", "failed": True}]}
    assert checks.kernels_outcome(*compare(raised)) == "failed"


def test_a_container_that_gives_no_answer_or_another_form() -> None:
    def late(_argv: Sequence[str], _stdin: bytes, _seconds: float) -> ExecResult:
        return ExecResult(1, b"", b"Timeout (0:10:00)!\n  File kernels, line 1 in run\n")

    assert checks.kernels(late, "python3", "moe")[1][0].verdict == "failed"
    with pytest.raises(ServiceError, match="another form"):
        compare({"rows": [{"by": "x"}], "not_run": []})
