"""What a kernel answered, judged; and children that answer nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from doctor_facts import Make, altered
from hypothesis import given
from hypothesis import strategies as st

from envgen.doctor import deep
from envgen.engine.values import ExecResult
from envgen.inside.run import NoAnswer, ask

RECORDED = json.loads((Path(__file__).parent / "deep_data/h200.json").read_bytes())["answers"]["kernel"]
RAN = {"kernel": "silu_and_mul", "seconds": 6.0, "worst": 0.5, "right": True}
GPU = altered(gpus=[{"name": "NVIDIA GB10", "capability": "12.1"}])
ANSWERS: list[tuple[Any, Any, str, str, str]] = [  # reply, probe, severity, case, what is seen or the title
    (RECORDED, None, "ok", "", "silu_and_mul compiled and ran in 4.7 s, with torch's result"),  # on an H200
    ({"answer": {**RAN, "right": False}}, None, "error", "wrong-result", "off by 0.5"),
    ({"answer": {"skipped": "torch 2 finds no GPU"}}, None, "info", "", "torch 2 finds no GPU"),
    ({"answer": {"skipped": "torch 2 finds no GPU"}}, GPU, "error", "no-gpu", "torch 2 finds no GPU"),
    (NoAnswer("ImportError", "libcuda.so.1"), None, "error", "fails", "libcuda.so.1"),
    (NoAnswer("SystemExit", "2"), None, "error", "fails", "SystemExit: 2"),
    (NoAnswer("no answer in time", "", ("loading",), 1, True), None, "error", "hangs", "in time; loading"),
]


@pytest.mark.parametrize(("reply", "probe", "severity", "case", "seen"), ANSWERS)
def test_what_a_kernel_answered(make: Make, reply: Any, probe: Any, severity: str, case: str, seen: str) -> None:
    found = deep.judge(reply, make(probe))
    assert (found.check, found.severity.word, found.case) == ("deep.kernel", severity, case)
    assert seen in (found.seen or found.title) and (severity != "error" or found.remedy)


@pytest.mark.parametrize(
    ("done", "seen"),
    [(ExecResult(139, b"", b"Fatal Python error: Segmentation fault\n"), "139; Fatal Python error: Segmentation"),
     (ExecResult(137, b"", b""), "memory ran out"),
     (ExecResult(7, b"no document", b""), "exit code 7; no document"),
     (ExecResult(1, b"", b"Timeout (0:00:02)!\n" + b"  File x\n" * 50), "no answer in time")],
)  # fmt: skip
def test_how_a_process_ended_is_the_answer(done: ExecResult, seen: str, make: Make) -> None:
    found = ask(lambda argv, stdin, timeout: done, "python3", deep.PROGRAM, {}, timeout=2)
    assert seen in deep.judge(found, make()).seen


VALUES = st.none() | st.integers() | st.text() | st.dictionaries(st.text(), st.integers()) | st.lists(st.text())


@given(st.dictionaries(st.sampled_from(["answer", "error", "seconds"]), VALUES))
def test_any_answer_is_judged(make: Make, reply: Any) -> None:
    assert deep.judge(reply, make()).title
