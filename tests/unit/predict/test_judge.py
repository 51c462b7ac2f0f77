"""What a release's answer means for a service. The answers are recordings of real releases (answers/)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envgen.inside.run import NoAnswer
from envgen.predict.judge import Verdict, judge
from envgen.profile.service import Ready, Service

ANSWERS = Path(__file__).parent / "answers"


def recorded(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((ANSWERS / f"{name}.json").read_text(encoding="utf-8"))
    return document


def service(expect: dict[str, str] | None = None, forbid: dict[str, str] | None = None) -> Service:
    return Service(("vllm", "serve", "x"), ready=Ready(expect=expect or {}, forbid=forbid or {}))


def test_a_refusal_has_its_reasons_and_what_is_expected_of_that_step_is_not_a_second_problem() -> None:
    expect = {"attention": "Using .*FLASHINFER", "moe": "Using Marlin backend", "quantization": "quantization=mxfp4"}
    found = judge(recorded("0.14.0-flashinfer"), service(expect))
    assert found.verdict is Verdict.REFUSED and found.contradictions == ()
    [refusal] = found.refusals
    assert refusal.step == "attention" and "'sink setting not supported'" in refusal.message
    assert found.shown == {"moe": "Using Marlin backend", "quantization": "… quantization=mxfp4 …"}


def test_what_is_expected_is_shown_and_what_hangs_on_cubins_is_a_warning() -> None:
    expect = {"attention": r"Using AttentionBackendEnum\.FLASHINFER backend", "moe": "Using 'MARLIN' Mxfp4 MoE backend"}
    found = judge(recorded("0.32.0-flashinfer"), service(expect))
    assert found.verdict is Verdict.FITS and set(found.shown) == {"attention", "moe"}
    assert len(found.warnings) == 1 and "without cubins); otherwise: ValueError" in found.warnings[0]


def test_words_of_an_older_release_are_contradicted() -> None:
    found = judge(recorded("0.32.0-flashinfer"), service({"moe": "Using Marlin backend", "later": "Graph capturing"}))
    assert found.verdict is Verdict.CONTRADICTS
    [one] = found.contradictions
    assert (one.kind, one.name, one.seen) == ("expect", "moe", "Using 'MARLIN' Mxfp4 MoE backend.")
    assert found.unjudged == ("later",)


def test_a_forbidden_fallback_is_a_contradiction() -> None:
    answer = recorded("0.14.0-flashinfer") | {"refusals": []}
    expect = {"moe": "Using FlashInfer MXFP4 MXFP8 CUTLASS backend"}
    found = judge(answer, service(expect, {"marlin": "Using Marlin backend|Weight-only"}))
    assert [(one.kind, one.name) for one in found.contradictions] == [("expect", "moe"), ("forbid", "marlin")]


def test_patterns_are_made_of_the_release_s_own_lines() -> None:
    found = judge(recorded("0.32.0-flashinfer"), service({"attention": "FLASHINFER"}))
    assert found.patterns == {
        "attention": r"Using AttentionBackendEnum\.FLASHINFER backend",
        "moe": "Using 'MARLIN' Mxfp4 MoE backend",
        "quantization": "quantization=gpt_oss_mxfp4",
    }


def test_two_workers_get_two_gpus() -> None:
    answer = recorded("0.32.0-two-gpus")
    found = judge(answer, service())
    assert found.verdict is Verdict.FITS and answer["platform"]["count"] == 2
    assert any(one.startswith("assumes 2 GPUs") for one in found.caveats)


@pytest.mark.parametrize("failure", [NoAnswer("no answer in time", "exit code 1"), NoAnswer("ImportError", "x")])
def test_no_answer_is_not_a_verdict(failure: NoAnswer) -> None:
    found = judge(failure, service({"moe": "x"}))
    assert found.verdict is Verdict.UNKNOWN and str(failure) in found.unasked[0]
