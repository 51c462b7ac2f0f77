"""Whatever a container says: a document that can't be read is a finding, and no check falls over one that can.

Recorded documents with parts exchanged at random. ENVGEN_EXAMPLES says how many.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from doctor_facts import DATA, Make, recording
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutated import CHANGES, Changes, mutated

from envgen.doctor import collect, deep
from envgen.doctor.checks import CHECKS
from envgen.doctor.evidence import MARK
from envgen.doctor.model import Context
from envgen.engine.base import ExecResult

NAMES = sorted(path.stem for path in DATA.glob("*.json"))
RECORDED = {name: recording(name) for name in NAMES}
DEEP: dict[str, Any] = json.loads((DATA.parent / "deep_data/h200.json").read_text())


def printed(document: dict[str, Any]) -> ExecResult:
    rest = {key: value for key, value in document.items() if key != "envgen_probe"}
    return ExecResult(0, MARK + json.dumps(rest)[1:].encode() + b"\n", b"")


def survives(answer: ExecResult, context: Context) -> bool:
    """Whether it can be read. All checks run on it then, and here a defect in one is not caught."""
    probe, trouble = collect.read(answer, "python3")
    assert (probe is None) != (trouble is None)
    if probe is None:
        return False
    for check in CHECKS:
        for finding in check.run(replace(context, probe=probe)):
            assert finding.title
    return True


def test_the_recordings_themselves_can_be_read(make: Make) -> None:
    assert all(survives(printed(document), make()) for document in RECORDED.values())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(NAMES), changes=CHANGES)
def test_any_document_of_a_probe(make: Make, name: str, changes: Changes) -> None:
    survives(printed(mutated(RECORDED[name], changes)), make())


@pytest.mark.parametrize(
    "part",
    [
        {"environment": []}, {"environment": {"values": []}}, {"environment": {"values": "x"}},
        {"environment": {"values": 7}}, {"environment": {"values": None}}, {"system": {"now": "x"}},
        {"system": {"now": []}}, {"system": {"now": float("inf")}}, {"system": {"now": 10**400}},
    ],
)  # fmt: skip
def test_parts_that_were_not_looked_at(make: Make, part: dict[str, Any]) -> None:
    assert not survives(printed({**RECORDED["raw"], **part}), make())


def test_a_document_nested_without_end(make: Make) -> None:
    nested = "[" * 200_000 + "]" * 200_000
    assert not survives(ExecResult(0, MARK + f'"python": {nested}}}\n'.encode(), b""), make())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=CHANGES)
def test_any_answer_to_a_deep_question(make: Make, changes: Changes) -> None:
    answers = {name: mutated(said, changes) for name, said in DEEP["answers"].items()}
    for finding in deep.judge(json.loads(json.dumps(answers)), make()):
        assert finding.title
