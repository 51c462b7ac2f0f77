"""`sweep`: which forms, which table, which earlier sweep is continued. tests/engine/test_answers.py runs one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envgen.app import sweep
from envgen.app.measure import MeasureOptions
from envgen.app.session import Session
from envgen.app.sweep import forms_of, lines_of, measured_row, reference_among, unfinished
from envgen.bench import record
from envgen.bench.tools import Matrix
from envgen.errors import Problem, UsageError
from envgen.serve.preflight import PreflightError

FILE = """\
version: 1
name: x
default_profile: prod
defaults: {base: {image: b}, cuda: {arch_list: 12.1a}}
profiles:
  prod:
    mode: production
    services: {serve: {command: [vllm, serve, m], ports: ["8000:8000"]}}
    variants:
      long: {services: {serve: {args: {max-model-len: 9}}}}
      short: {services: {serve: {args: {max-model-len: 3}}}}
      eager: {services: {serve: {args: {enforce-eager: true}}}}
  other: {extends: prod, dockerfile: Dockerfile.other}
"""


@pytest.fixture
def session(tmp_path: Path) -> Session:
    (tmp_path / "envgen.yaml").write_text(FILE)
    return Session(tmp_path / "envgen.yaml", variant="long")


def test_forms(session: Session) -> None:
    found = forms_of(session, "serve", ["plain", "short", "long+eager", "other"])
    assert {name: (form.profile().name, form.profile().variant) for name, form in found.items()} == {
        "plain": ("prod", ""), "short": ("prod", "short"), "long+eager": ("prod", "long+eager"), "other": ("other", ""),
    }  # fmt: skip


@pytest.mark.parametrize(("name", "message"), [("shart", "no variant 'shart'"), ("long+shart", "no variant")])
def test_an_unknown_form_is_refused_before_anything_stops(session: Session, name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        forms_of(session, "serve", ["plain", name])


def row(name: str, verdict: str = "close", cause: str = "", **figures: float) -> dict[str, Any]:
    return {"variant": name, "seconds": None if cause else 61.0, "verdict": verdict, "answers": "1", "bench": "",
            "figures": figures, "kernels": [], "cause": cause}  # fmt: skip


def test_rows_whose_answers_differ_are_marked() -> None:
    rows = [row("a", "same", speed=10.0), row("b", "different", speed=1234.5), row("c", "", "it ended: out of memory")]
    assert lines_of(rows) == [
        ("variant", "started", "answers", "speed", "cause"),
        ("a", "1m", "same", "10.0", ""),
        ("b", "1m", "different !", "1,234.5", ""),
        ("c", "-", "-", "-", "it ended: out of memory"),
    ]


def test_only_an_interrupted_sweep_of_the_same_is_continued(tmp_path: Path) -> None:
    def swept(parameters: dict[str, Any], *, ended: bool) -> str:
        with record.start(tmp_path, "sweep", {}, parameters) as run:
            run.sample(row("a"))
            if ended:
                run.end("passed", {})
        return run.id

    assert unfinished(tmp_path, {"variants": ["a"]}) is None
    first = swept({"variants": ["a"]}, ended=False)
    found = unfinished(tmp_path, {"variants": ["a"]})
    assert found and found.id == first and unfinished(tmp_path, {"variants": ["a", "b"]}) is None
    swept({"variants": ["a"]}, ended=True)
    assert unfinished(tmp_path, {"variants": ["a"]}) is None


def test_the_cause_of_a_row_is_what_was_refused_and_not_its_heading() -> None:
    def show() -> float:
        raise PreflightError("serve", (Problem("the image differs from the profile"), Problem("port 8000 is taken")))

    asked = MeasureOptions(Session(), "serve", None, None, None, 1)
    kept = measured_row(asked, "long", show, None, None, True)
    assert kept["cause"] == "the image differs from the profile"


@pytest.mark.parametrize(("failed", "cause"), [(0, ""), (3, "tg32: 3 failed: no"), (-1, "tg32: no")])
def test_failed_requests_of_a_benchmark_are_a_cause(monkeypatch: pytest.MonkeyPatch, failed: int, cause: str) -> None:
    """The figures of those that were answered are no reason to call the form good."""
    cells = [{"test": "tg32", "failed": max(failed, 0), "fault": "no" * bool(failed), "decode_tps": {"median": 50.0}}]
    speed = {"cells": cells, "targets": []}
    monkeypatch.setattr(sweep, "answered", lambda *_, **__: ("same", {"rows": []}, Path("a")))
    monkeypatch.setattr(sweep, "measure", lambda *_: (("failed" if failed else "passed", speed), Path("b")))
    monkeypatch.setattr(record, "load", lambda path: SimpleNamespace(id=str(path), environment={}))
    asked = MeasureOptions(Session(), "serve", None, None, None, 1)
    kept = measured_row(asked, "long", lambda: 1.0, None, Matrix(), True)
    assert (kept["verdict"], kept["cause"]) == ("same", cause) and kept["figures"]
    short = measured_row(asked, "long", lambda: 1.0, None, Matrix(depth=(0, 4096)), True)
    assert short["cause"] == (cause or "its context has room for 1 of 2 tests")
    monkeypatch.setattr(sweep, "answered", lambda *_, **__: ("broken", {"rows": []}, Path("a")))
    assert measured_row(asked, "long", lambda: 1.0, None, Matrix(), True)["bench"] == ""  # not measured


def test_a_form_with_wrong_answers_is_no_reference() -> None:
    rows = [{"verdict": word, "answers": str(number)} for number, word in enumerate(("", "broken", "close", "same"))]
    assert reference_among(rows) == "2" and reference_among(rows[:2]) == ""
