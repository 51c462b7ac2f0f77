"""What the packages answered, judged; and children that answer nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.doctor import deep
from envgen.doctor.model import Context, Finding, Severity
from envgen.engine.values import ExecResult
from envgen.inside.run import NoAnswer, ask

Make = Callable[..., Context]
DATA = Path(__file__).parent / "deep_data"
GPU = {"answer": {"torch": "2", "cuda": "13.0", "available": True, "count": 1, "name": "X", "capability": [12, 1]}}


def judged(make: Make, **answers: Any) -> dict[str, Finding]:
    return {one.check: one for one in deep.judge(answers, make())}


@pytest.mark.parametrize("name", sorted(deep.QUESTIONS))
@pytest.mark.parametrize(
    ("reply", "case", "seen"),
    [(NoAnswer("ImportError", "libcuda.so.1"), "raises", "libcuda.so.1"),
     (NoAnswer("SystemExit", "2"), "raises", "sys.exit(2)"),
     (NoAnswer("no answer in time", "", ("loading",), 1, True), "hangs", "0 s; loading"),
     (NoAnswer("no answer", "", ("Fatal Python error",), 139), "crashes", "SIGSEGV"),
     (NoAnswer("no answer", "", (), 137), "crashes", "out of memory"),
     (NoAnswer("no answer", "", ("bye",), 3), "exits", "exit code 3; bye")],
)  # fmt: skip
def test_a_child_without_an_answer_is_a_finding(name: str, reply: Any, case: str, seen: str, make: Make) -> None:
    found = judged(make, **{name: reply})[f"deep.{name}"]
    assert (found.severity, found.case) == (Severity.ERROR, case) and seen in found.seen and found.remedy


def test_the_gpu_against_the_profile(make: Make) -> None:
    assert judged(make, gpu=GPU)["deep.gpu"].severity is Severity.OK
    none = judged(make, gpu={"answer": {"torch": "2", "cuda": None, "available": False}})["deep.gpu"]
    assert none.severity is Severity.INFO and "can't be checked" in none.title


def test_a_kernel(make: Make) -> None:
    ran = {"kernel": "silu_and_mul", "seconds": 6.0, "worst": 0.0, "right": True}
    assert judged(make, kernel={"answer": ran})["deep.kernel"].severity is Severity.OK
    assert judged(make, kernel={"answer": {**ran, "right": False}})["deep.kernel"].case == "wrong-result"
    assert judged(make, kernel={"answer": {"skipped": "no GPU"}})["deep.kernel"].severity is Severity.INFO


def test_what_a_real_gpu_answered(make: Make) -> None:
    """Recorded on an H200, another GPU than the profile is for; its document says with which releases."""
    recorded = json.loads((DATA / "h200.json").read_bytes())["answers"]
    answers = {name: one for name, one in recorded.items() if name in deep.QUESTIONS}
    found = {one.check: one for one in deep.judge(answers, make())}
    assert "NVIDIA H200, compute capability 9.0" in found["deep.gpu"].title
    assert found["deep.kernel"].title == "silu_and_mul compiled and ran in 4.7 s, with torch's result"


def test_only_questions_that_the_profile_has_are_asked() -> None:
    assert set(deep.questions(set())) == {"gpu"}
    assert list(deep.questions({"vllm", "flashinfer", "mine"})) == [*deep.QUESTIONS]


@pytest.mark.parametrize(
    ("done", "seen"),
    [(ExecResult(139, b"", b"Fatal Python error: Segmentation fault\n"), "SIGSEGV; Fatal Python error: Segmentation"),
     (ExecResult(7, b"no document", b""), "exit code 7"),
     (ExecResult(1, b"", b"Timeout (0:00:02)!\n" + b"  File x\n" * 50), "no answer in 300 s")],
)  # fmt: skip
def test_how_a_process_ended_is_the_answer(done: ExecResult, seen: str, make: Make) -> None:
    found = ask(lambda argv, stdin, timeout: done, "python3", deep.PROGRAM, {"question": "kernel"}, timeout=2)
    assert seen in judged(make, kernel=found)["deep.kernel"].seen


FIELDS = st.sampled_from(["answer", "error", "seconds"])
VALUES = st.none() | st.integers() | st.text() | st.dictionaries(st.text(), st.integers()) | st.lists(st.text())


@given(st.dictionaries(st.sampled_from(sorted(deep.QUESTIONS)), st.dictionaries(FIELDS, VALUES)))
def test_any_answers_are_judged(make: Make, answers: Any) -> None:
    assert len(deep.judge(answers, make())) == len(answers)
