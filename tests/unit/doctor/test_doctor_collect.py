"""The documents that checks judge, how they are gathered, and the report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from doctor_facts import CONTAINER, ENGINE, IMAGE, Make, recording

from envgen.deployment import Deployment
from envgen.doctor import collect, probed, remedies, report
from envgen.doctor.collect import choose_container, gather
from envgen.doctor.model import Check, Context, Finding, Remedy, Section, Severity, Subject, error, ok
from envgen.doctor.report import Report
from envgen.engine import box
from envgen.engine.values import Container, EngineInfo, ExecResult, Image, Port
from envgen.errors import EngineError
from envgen.inside import run
from envgen.inside.run import Execute
from envgen.profile.model import Profile
from envgen.render.outputs import RENDER_LABEL
from envgen.text import shell_line


def test_a_defect_in_a_check_is_a_finding(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_context: Context) -> list[Finding]:
        raise KeyError("x")

    monkeypatch.setattr(report, "CHECKS", [Check("x.y", Section.HOST, broken)])
    found = report.examine(make())
    assert found.findings[0].title == "the check x.y failed: a defect of envgen"
    assert found.worst is Severity.ERROR
    (finding,) = report.as_data(found)["findings"]
    assert "in broken" in finding["evidence"]["traceback"]


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[2Jb", "it's\n\\", "\udcff", "a b", "\u202ex", "\ud800"])
def test_a_file_of_any_name_gets_a_command_in_one_line(name: str, make: Make) -> None:
    cure = remedies.away(make(), f"/app/{name}.py")
    assert cure.text.isprintable() and cure.text.endswith(shell_line([f"/app/{name}.py.off"]))


# --- the report ------------------------------------------------------------------------------------------------------


def test_text_and_data(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(_context: Context) -> list[Finding]:
        return [ok("fine"), error("bad \x1b[31m", "this", "that", Remedy("do: it", is_line=True))]

    monkeypatch.setattr(report, "CHECKS", [Check("x.y", Section.IMAGE, judge)])
    found = report.examine(make())
    assert report.as_text(found) == (
        "Image\n  ok    fine\n  FAIL  bad \\x1b[31m\n        seen:     this\n        expected: that\n"
        "        fix:      do: it   (in envgen.yaml, profile dev)\n\n1 error, 1 ok"
    )
    assert "\x1b[31;1mFAIL\x1b[0m" in report.as_text(found, colour=True)
    data = report.as_data(found)
    assert data["worst"] == "error"
    assert data["counts"] == {"ok": 1, "info": 0, "warning": 0, "error": 1}
    assert data["findings"][1]["remedy"] == {"kind": "profile", "text": "do: it"}
    json.dumps(data)


# --- documents, requests, gathering ----------------------------------------------------------------------------------


def answering(*printed: bytes, code: int = 0, stderr: bytes = b"") -> Execute:
    """A container whose Python prints this, ``MARK`` being the runner's."""

    def execute(_argv: Sequence[str], stdin: bytes, _timeout: float) -> ExecResult:
        mark = json.loads(stdin)["mark"].encode()
        return ExecResult(code, b"".join(printed).replace(b"MARK", mark), stderr)

    return execute


def test_the_document_is_found_behind_noise() -> None:
    line = b"\nMARK " + json.dumps({"answer": recording("hook")}).encode() + b"\n"
    assert isinstance(probed.ask(answering(b"\xff\xfe noise", line), "python3", {}), probed.Probe)


def refusing(_argv: Sequence[str], _stdin: bytes, _timeout: float) -> ExecResult:
    raise EngineError("timed out")


@pytest.mark.parametrize(
    ("execute", "reason"),
    [
        (
            answering(code=127, stderr=b"exec: python3: not found"),
            "cannot start python3 in the container: exec: python3",
        ),
        (answering(code=137), "no answer: "),
        (answering(b"hello"), "no answer: exit code 0; hello"),
        (answering(b'\nMARK {"answer": {"python"'), "no answer: exit code 0; MARK"),
        (answering(b'\nMARK {"answer": {"python": 3}}'), "python"),
        (refusing, "timed out"),
    ],
)
def test_no_document_has_a_reason(execute: Execute, reason: str) -> None:
    answer = probed.ask(execute, "python3", {})
    assert isinstance(answer, str) and answer.startswith(reason.replace("MARK", "envgen-"))


def test_request(make: Make) -> None:
    asked = collect.request(make().profile, "dev")
    assert asked["folders"] == ["/workspace", "/workspace/flashinfer", "/", "~"]
    assert asked["packages"][0]["scripts"] == ["flashinfer"]
    assert asked["paths"] == ["/workspace/flashinfer", "/root/.cache/flashinfer"]
    assert run.shell_python(make(sets=("base.python=/opt/x/python3.12",)).profile) == "python3"


class FakeEngine:
    """The parts of an Engine that gathering uses."""

    def __init__(self, *containers: Container) -> None:
        self.found, self.asked = containers, list[list[str]]()

    def info(self) -> EngineInfo:
        return replace(ENGINE, endpoint="tcp://elsewhere")

    def image(self, name: str) -> Image | None:
        return IMAGE

    def steps(self, _image: str) -> list[str]:
        return []

    def containers(
        self, project: str | None = None, service: str | None = None, all: bool = False
    ) -> tuple[Container, ...]:
        return self.found

    def volume(self, name: str) -> str | None:
        return None

    def inspect(self, name: str) -> dict[str, Any]:
        return {"Created": "2026-01-01T00:00:00.123456789Z"}

    def exec(self, container_id: str, argv: list[str], stdin: bytes = b"", **_given: Any) -> ExecResult:
        self.asked.append(argv)
        line = b"\nMARK " + json.dumps({"answer": recording("hook")}).encode() + b"\n"
        return answering(line)(argv, stdin, 0)

    run_once = exec


def deployment(profile: Profile, root: Path, engine: FakeEngine) -> Deployment:
    return Deployment(profile, root).with_cached(engine=engine)


def test_gather(make: Make, tmp_path: Path) -> None:
    engine = FakeEngine(replace(CONTAINER, ports=(Port(8000, 8000),)))
    context = gather(Subject(deployment(make().profile, tmp_path, engine)))
    assert context.no_engine is None
    assert context.probe is not None
    assert context.digest
    # An import, the probe, and what runs.
    assert sorted(argv[1] for argv in engine.asked) == ["-X", "-c", "-c"]


@pytest.mark.parametrize("question", ["info", "image", "steps"])
def test_an_engine_that_goes_silent_is_an_error_and_no_missing_check(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    def silent(*_: object) -> None:
        raise EngineError("it does not answer in time")

    engine = FakeEngine()
    subject = deployment(make().profile, tmp_path, engine)
    labels = {RENDER_LABEL: deployment(make().profile, tmp_path, FakeEngine()).rendered.digest}
    monkeypatch.setattr(engine, "image", lambda _: replace(IMAGE, labels=labels))
    monkeypatch.setattr(engine, question, silent)
    judged = report.examine(gather(Subject(subject)))
    assert [one.seen for one in judged.findings if one.check == "host.docker"] == ["it does not answer in time"]
    assert judged.worst is Severity.ERROR


def test_gather_without_a_container(make: Make, tmp_path: Path) -> None:
    subject = Subject(deployment(make().profile, tmp_path, FakeEngine()))
    assert gather(subject).probe is None
    context = gather(replace(subject, may_start=True))
    assert context.is_temporary
    assert context.probe is not None


def test_gather_without_an_engine(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(_environ: object) -> Any:
        raise EngineError("Docker is stopped", command="sudo systemctl start docker")

    monkeypatch.setattr(box, "look", lambda: None)  # it starts nvidia-smi

    monkeypatch.setattr("envgen.deployment.host.connect", connect)
    context = gather(Subject(Deployment(make().profile, tmp_path)))
    assert context.engine is None
    [found] = [one for one in report.examine(context).findings if one.check == "host.docker"]
    assert found.seen == "Docker is stopped" and found.severity is Severity.ERROR
    assert found.remedy == Remedy("sudo systemctl start docker")


def test_which_container() -> None:
    dev, serve = CONTAINER, replace(CONTAINER, service="serve", name="s")
    stopped = replace(serve, state="exited")
    assert choose_container([serve, dev], None) is dev
    assert choose_container([serve, dev], "serve") is serve
    assert choose_container([stopped], None) is stopped
    failed = replace(stopped, exit_code=75)
    assert choose_container([stopped, failed], None) is failed
    assert choose_container([replace(stopped, state="created")], None) is None
    assert choose_container([stopped], "serve") is stopped
    assert choose_container([], "serve") is None


def test_a_report_of_several_machines_names_them(make: Make) -> None:
    one, two = Report(make(), (ok("a"),)), Report(make(), (ok("b"),))
    several, alone = report.joined({"spark-1": one, "spark-2": two}), report.joined({"": two})
    rows = [(row["node"], row["title"]) for row in report.as_data(several)["findings"]]
    assert rows == [("spark-1", "a"), ("spark-2", "b")]
    headings = [line for line in report.as_text(several).splitlines() if line and not line.startswith(" ")]
    assert headings[:2] == ["Host on spark-1", "Host on spark-2"]
    assert report.as_text(alone).startswith("Host\n")
