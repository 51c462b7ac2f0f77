"""Whatever a container says: a document that can't be read is a finding, and no check falls over one that can.

Recorded documents with parts exchanged at random. ENVGEN_EXAMPLES says how many.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from doctor_facts import CONTAINER, DATA, Make, recording
from doctor_page import DESCRIBED
from hypothesis import given
from hypothesis import strategies as st
from mutated import CHANGES, Changes, mutated

from envgen.doctor import probed, programs
from envgen.doctor.checks import CHECKS
from envgen.doctor.model import Context, Severity
from envgen.engine.values import ExecResult

NAMES = sorted(path.stem for path in DATA.glob("*.json"))
RECORDED = {name: recording(name) for name in NAMES}


def survives(document: dict[str, Any], context: Context, text: str = "") -> bool:
    """Whether it can be read. All checks run on it then, and here a defect in one is not caught."""

    def execute(_argv: Sequence[str], stdin: bytes, _timeout: float) -> ExecResult:
        answer = text or json.dumps({"answer": document})
        return ExecResult(0, f"\n{json.loads(stdin)['mark']} {answer}\n".encode(), b"")

    probe = probed.ask(execute, "python3", {})
    if isinstance(probe, str):
        assert probe  # the reason
        return False
    for check in CHECKS:
        for finding in check(replace(context, probe=probe)):
            assert finding.title
            # Hours of compiled kernels: no fix may cost them.
            assert finding.remedy is None or "--volumes" not in finding.remedy.text
            described = DESCRIBED.get((check.id, finding.case))
            assert finding.severity <= Severity.INFO or described == finding.severity.word, check.id
    return True


def test_the_recordings_themselves_can_be_read(make: Make) -> None:
    assert all(survives(document, make()) for document in RECORDED.values())


@given(name=st.sampled_from(NAMES), changes=CHANGES)
def test_any_document_of_a_probe(make: Make, name: str, changes: Changes) -> None:
    survives(mutated(RECORDED[name], changes), make())


@pytest.mark.parametrize(
    "part",
    [
        {"variables": []}, {"variables": "x"}, {"variables": {"PYTHONPATH": 7}}, {"variables": {"PYTHONPATH": None}},
        {"system": {"uid": "x"}}, {"system": {"uid": []}}, {"system": {"gid": None}}, {"python": None},
        {"python": {"version": 3}}, {"imports": {}}, {"imports": [{"package": "x"}]}, {"imports": [3]},
        {"roots": [{"package": "x", "root": "/", "data": [{"path": 1}]}]},
    ],
)  # fmt: skip
def test_parts_of_another_form(make: Make, part: dict[str, Any]) -> None:
    assert not survives({**RECORDED["raw"], **part}, make())


def test_a_document_nested_without_end(make: Make) -> None:
    nested = "[" * 200_000 + "]" * 200_000
    assert not survives({}, make(), f'{{"answer": {{"python": {nested}}}}}')


CELL = {"package": "flashinfer", "how": "-c", "folder": "/", "kind": "regular", "origin": "/e/flashinfer/__init__.py",
        "entry": "/e", "finder": "PathFinder", "portions": ["/e"], "entries": ["/e"]}  # fmt: skip
PROGRAM = {"pid": 7, "top": 1, "started": 5.0, "title": "python3 -c ...", "how": "-c", "folder": "/", "cells": [CELL],
           "variables": {"PYTHONPATH": "/e"}, "named": ["flashinfer"],
           "mapped": [{"package": "flashinfer", "folder": "/x", "file": "/x/a.so", "gone": True}],
           "changes": [{"what": "first", "entry": "/e", "file": "/a.py", "line": 3}]}  # fmt: skip
RUNNING: dict[str, Any] = {
    "processes": [PROGRAM], "origins": [{"package": "flashinfer", "home": "/w/flashinfer/__init__.py"}],
    "ages": [{"package": "flashinfer", "folder": "/w/flashinfer", "file": "/w/flashinfer/a.py", "changed": 9.0}],
}  # fmt: skip


@given(changes=CHANGES)
def test_any_document_of_the_programs_that_run(make: Make, changes: Changes) -> None:
    document = mutated(RUNNING, changes)

    def execute(_argv: Sequence[str], stdin: bytes, _timeout: float) -> ExecResult:
        return ExecResult(0, f"\n{json.loads(stdin)['mark']} {json.dumps({'answer': document})}\n".encode(), b"")

    running = programs.ask_running(execute, "python3", {}, CONTAINER)
    (check,) = (one for one in CHECKS if one.id == "import.running")
    for finding in check(replace(make(), running=(running,))):
        described = DESCRIBED.get((check.id, finding.case))
        assert finding.severity <= Severity.INFO or described == finding.severity.word
