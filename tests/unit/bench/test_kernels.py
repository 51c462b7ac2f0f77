"""What a container found out about its kernels, as verdicts: recorded on an H100, and spoilt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from envgen.bench import checks
from envgen.cli.measure.bench import shown
from envgen.engine.values import ExecResult
from envgen.errors import ServiceError

RECORDED = json.loads((Path(__file__).parent / "data" / "kernels-h100.json").read_bytes())


def compare(**changes: Any) -> tuple[str, dict[str, Any], list[Any]]:
    """``changes``: what the container answers instead."""
    kept: list[Any] = []

    def execute(_argv: Sequence[str], stdin: bytes, _seconds: float) -> ExecResult:
        envelope = json.loads(stdin)
        answer = {**RECORDED[envelope["request"]["kernel"]], **changes}
        return ExecResult(0, f"{envelope['mark']} {json.dumps({'answer': answer})}\n".encode(), b"")

    return *checks.kernels(execute, "python3", kept.append), kept


def test_what_an_h100_found() -> None:
    outcome, found, kept = compare()
    assert outcome == "passed" and len(found["rows"]) == len(kept) == 54
    left = [one for one in found["criteria"] if one["verdict"] == "not checked"]
    assert [one["name"] for one in left] and "fused_moe_90 is not compiled here" in left[0]["seen"]


@pytest.mark.parametrize("spoilt", [{"right": False, "error": 0.3}, {"right": None, "error": None}, {"right": 1}])
def test_one_wrong_row_fails(spoilt: dict[str, Any]) -> None:
    first, *rest = RECORDED["attention"]["rows"]
    outcome, found, _ = compare(rows=[{**first, **spoilt}, *rest])
    assert outcome == "failed"
    wrong = [line for line in shown({"rows": found["rows"]}) if line.endswith("WRONG")]
    assert wrong[0].startswith("attention with sinks  FlashInfer fa2  decode M=4 ")


@pytest.mark.parametrize(("failed", "outcome"), [(False, "not checked"), (True, "failed")])
def test_what_was_not_run_is_never_ok(failed: bool, outcome: str) -> None:
    left = {"by": "vLLM Triton", "why": "OutOfResources", "failed": failed}
    assert compare(rows=[], not_run=[left])[0] == outcome


def test_a_container_that_gives_no_answer_or_another_form() -> None:
    late = ExecResult(1, b"", b"Timeout (0:10:00)!\n  File kernels, line 1 in run\n")
    assert checks.kernels(lambda *_: late, "python3", print)[0] == "failed"
    with pytest.raises(ServiceError, match="another form"):
        compare(rows=[{"by": "x"}])
