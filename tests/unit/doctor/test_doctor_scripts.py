"""A project's own checks: what they may print, and that a broken one is one finding."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.doctor import scripts
from envgen.doctor.model import Context, Finding, Severity
from envgen.engine.client import Engine
from envgen.engine.values import Container, ExecResult
from envgen.errors import EngineError

Make = Callable[..., Context]
GOOD = {"severity": "error", "title": "t", "seen": "s", "expected": "e", "remedy": {"kind": "command", "text": "fix"}}


def script(tmp_path: Path, name: str = "10-mine.py") -> Path:
    path = tmp_path / name
    path.write_text("print()")
    return path


def run(tmp_path: Path, make: Make, stdout: bytes, code: int = 0, stderr: bytes = b"") -> list[Finding]:
    def ask(argv: list[str], stdin: bytes) -> ExecResult:
        assert argv == ["python3", "-"] and stdin == b"print()"
        return ExecResult(code, stdout, stderr)

    return scripts.run_script(script(tmp_path), ask, make())


def test_a_script_prints_findings(tmp_path: Path, make: Make) -> None:
    """One that fails after them is a finding, too."""
    found, broken = run(tmp_path, make, json.dumps({"findings": [GOOD]}).encode(), 3, b"Traceback\nlast line")
    assert (found.severity, found.title, found.seen, found.expected) == (Severity.ERROR, "t", "s", "e")
    assert found.remedy and found.remedy.text == "fix" and found.check == "checks/10-mine.py"
    assert broken.seen == "exit code 3; last line"


@pytest.mark.parametrize(
    ("stdout", "seen"),
    [(b"", "no JSON"), (b"\xff\xfe", "no JSON"), (b"hello", "no JSON"), (b"[" * 100_000, "no JSON"),
     (b"[]", "findings"),
     (b'{"findings": 3}', "findings"), (b'{"findings": [3]}', "not an object"), (b'{"findings": [{}]}', "severity"),
     (b'{"findings": [{"severity": "ok"}]}', "finding 1.title is missing"),
     (b'{"findings": [{"severity": "ok", "title": " "}]}', "finding 1 has no title"),
     (b'{"findings": [{"severity": "bad", "title": "x"}]}', "severity"),
     (b'{"findings": [{"severity": "ok", "title": 3}]}', "finding 1.title is not str"),
     (b'{"findings": [{"severity": "ok", "title": "x", "remedy": {"text": "a\\nb"}}]}', "remedy"),
     (b'{"findings": [{"severity": "ok", "title": "x", "evidence": 3}]}', "evidence"),
     (b" " * (2 << 20), "more than")],
)  # fmt: skip
def test_what_can_not_be_read_is_one_finding(stdout: bytes, seen: str, tmp_path: Path, make: Make) -> None:
    (found,) = run(tmp_path, make, stdout)
    assert seen in found.seen and found.severity is Severity.WARNING and found.remedy
    # Of one that a kernel took with it, the end is said.
    (found,) = run(tmp_path, make, stdout[:13], 139, b"moe, 4 tokens\nSegmentation fault")
    assert found.seen == "exit code 139; Segmentation fault"


KEYS = st.sampled_from(["findings", "severity", "title", "remedy", "text", "evidence"])
LEAVES = st.none() | st.booleans() | st.integers() | st.text()
TREES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner), max_leaves=12)


@given(st.binary() | TREES.map(lambda tree: json.dumps(tree).encode()))
def test_any_output_is_taken(make: Make, stdout: bytes) -> None:
    try:
        scripts.read_answer(stdout, make())
    except ValueError as problem:
        assert str(problem)


def test_helpers_and_other_files_are_left_alone(tmp_path: Path) -> None:
    for name in ("b.sh", "a.py", "_help.py", ".x.py", "README.md"):
        (tmp_path / name).write_text("")
    assert [path.name for path in scripts.scripts_in(tmp_path)] == ["a.py", "b.sh"]
    assert scripts.scripts_in(tmp_path / "none") == []


@pytest.mark.parametrize(("state", "title"), [("running", "is broken"), ("exited", "did not finish"), ("", "finish")])
def test_a_deep_check_that_ended_with_its_container_is_not_broken(
    state: str, title: str, tmp_path: Path, make: Make
) -> None:
    context = make()
    running = context.container
    assert running is not None and running.state == "running"
    gone = replace(running, state=state) if state else None

    class Killing:
        def exec(self, *_: object, **__: object) -> ExecResult:
            return ExecResult(137, b"", b"Building JIT module fused_moe_90")

        def container(self, _: str) -> Container | None:
            return gone

    (tmp_path / "checks/deep").mkdir(parents=True)
    script(tmp_path / "checks/deep")
    (ended,) = scripts.from_folder(context, tmp_path, cast(Engine, Killing()), scripts.DEEP)
    assert title in ended.title


def test_a_deep_check_tells_that_it_runs_and_its_limit_is_no_fault_of_its_own(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine stops it at the limit; what it has compiled is there for the next run, which may take longer."""
    shown, told = list[str](), threading.Event()

    def show(line: str) -> None:
        shown.append(line)
        if "has run for" in line:
            told.set()

    class Slow:
        def exec(self, *_: object, timeout: float, **__: object) -> ExecResult:
            assert timeout == 0 and told.wait(30)
            raise EngineError("python3 did not end within 0 s")

    monkeypatch.setattr(scripts, "TOLD", 0.001)
    monkeypatch.setattr(scripts, "DEEP_LIMIT", 0.0)
    (tmp_path / "checks/deep").mkdir(parents=True)
    script(tmp_path / "checks/deep")
    (stopped,) = scripts.from_folder(make(), tmp_path, cast(Engine, Slow()), scripts.DEEP, show)
    assert "did not finish" in stopped.title and "what it has compiled stays" in stopped.seen
    assert stopped.remedy is not None and "doctor -p dev dev --deep" in stopped.remedy.text
    assert shown[0] == "checks/deep/10-mine.py, for at most 0s" and "10-mine.py has run for 0s" in shown[1]
