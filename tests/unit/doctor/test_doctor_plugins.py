"""A project's own checks: what they may print, and that a broken one is one finding."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envgen.doctor import plugins
from envgen.doctor.model import Context, Finding, FunctionCheck, Severity, Where, ok
from envgen.engine.base import ExecResult
from envgen.errors import EngineError

Make = Callable[..., Context]
GOOD = {"severity": "error", "title": "t", "seen": "s", "expected": "e", "remedy": {"kind": "command", "text": "fix"}}


class Point:
    """An entry point whose package was installed."""

    dist = None

    def __init__(self, loaded: Any) -> None:
        self.name, self.loaded = "mine", loaded

    def load(self) -> Any:
        if isinstance(self.loaded, BaseException):
            raise self.loaded
        return self.loaded


def findings(loaded: Any, context: Context) -> list[Finding]:
    return [one for found in plugins.from_entry_points(context, [Point(loaded)]).values() for one in found]  # type: ignore[list-item]


def raises(_context: Context) -> list[Finding]:
    raise RuntimeError("boom")


def exits(_context: Context) -> list[Finding]:
    raise SystemExit(3)


def test_an_entry_point_is_a_function(make: Make) -> None:
    found = findings(lambda context: [ok(context.profile.name)], make())
    assert [(one.check, one.title) for one in found] == [("plugin.mine", "dev")]


def test_an_entry_point_is_a_check_or_a_list_of_them(make: Make) -> None:
    one = FunctionCheck("a", "t", Where.INSIDE, lambda _: [ok("yes")])
    found = plugins.from_entry_points(make(), [Point([one, one])])  # type: ignore[list-item]
    assert [f.check for f in found[Where.INSIDE]] == ["plugin.mine.a", "plugin.mine.a"]


@pytest.mark.parametrize("kind", ["dist-info", "egg-info"])
def test_a_package_that_offers_checks_is_found_without_importlib_metadata(tmp_path: Path, kind: str) -> None:
    (tmp_path / "plain-1.0.dist-info").mkdir()
    (tmp_path / "other-1.0.dist-info").mkdir()
    (tmp_path / "other-1.0.dist-info" / "entry_points.txt").write_text("[console_scripts]\nother = other:main\n")
    (tmp_path / "file.egg-info").write_text("Name: file\n")
    paths = [str(tmp_path / "absent"), str(tmp_path), str(tmp_path)]
    assert not plugins._any_offered(paths)
    mine = tmp_path / f"mine-1.0.{kind}"
    mine.mkdir()
    (mine / "entry_points.txt").write_text("[envgen.checks]\nmine = mine:check\n")
    assert plugins._any_offered(paths)


def test_what_is_no_plain_folder_is_left_to_importlib_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "all.zip").write_bytes(b"PK")
    assert plugins._any_offered([str(tmp_path / "all.zip")])
    (tmp_path / "eggs" / "old-1.0.egg").mkdir(parents=True)
    assert plugins._any_offered([str(tmp_path / "eggs")])
    assert not plugins._any_offered([])
    finder = type("Finder", (), {"find_distributions": lambda *_: []})()
    monkeypatch.setattr("sys.meta_path", [finder])
    assert plugins._any_offered([])


@pytest.mark.parametrize(
    ("loaded", "seen"),
    [(ImportError("no module"), "can't be loaded: ImportError"), (SystemExit(1), "can't be loaded: SystemExit"),
     (raises, "RuntimeError: boom"), (exits, "SystemExit"), (3, "int is no check"), (lambda _: 3, "TypeError"),
     (lambda _: ["text"], "str is no finding")],
)  # fmt: skip
def test_a_broken_entry_point_is_one_finding(loaded: Any, seen: str, make: Make) -> None:
    (found,) = findings(loaded, make())
    assert seen in found.seen and found.severity is Severity.WARNING and found.remedy and found.case == "broken"


def script(tmp_path: Path, name: str = "10-mine.py") -> Path:
    path = tmp_path / name
    path.write_text("print()")
    return path


def run(tmp_path: Path, make: Make, stdout: bytes, code: int = 0, stderr: bytes = b"") -> list[Finding]:
    def ask(argv: list[str], stdin: bytes) -> ExecResult:
        assert argv == ["python3", "-"] and stdin == b"print()"
        return ExecResult(code, stdout, stderr)

    return plugins.run_script(script(tmp_path), ask, make())


def test_a_script_prints_findings(tmp_path: Path, make: Make) -> None:
    (found,) = run(tmp_path, make, json.dumps({"findings": [GOOD]}).encode())
    assert (found.severity, found.title, found.seen, found.expected) == (Severity.ERROR, "t", "s", "e")
    assert found.remedy and found.remedy.text == "fix" and found.check == "checks/10-mine.py"


def test_a_script_that_fails_after_its_findings_is_said_too(tmp_path: Path, make: Make) -> None:
    first, second = run(tmp_path, make, json.dumps({"findings": [GOOD]}).encode(), 3, b"Traceback\nlast line")
    assert first.title == "t" and second.seen == "exit code 3; last line"


@pytest.mark.parametrize(
    ("stdout", "seen"),
    [(b"", "no JSON"), (b"\xff\xfe", "no JSON"), (b"hello", "no JSON"), (b"[" * 100_000, "no JSON"),
     (b"[]", "findings"),
     (b'{"findings": 3}', "findings"), (b'{"findings": [3]}', "no object"), (b'{"findings": [{}]}', "severity"),
     (b'{"findings": [{"severity": "ok"}]}', "no title"),
     (b'{"findings": [{"severity": "bad", "title": "x"}]}', "severity"),
     (b'{"findings": [{"severity": "ok", "title": 3}]}', "no text"),
     (b'{"findings": [{"severity": "ok", "title": "x", "remedy": {"text": "a\\nb"}}]}', "remedy"),
     (b'{"findings": [{"severity": "ok", "title": "x", "evidence": 3}]}', "evidence"),
     (b'{"findings": [' + b",".join([b"{}"] * 500) + b"]}", "more than"), (b" " * (2 << 20), "more than")],
)  # fmt: skip
def test_what_can_not_be_read_is_one_finding(stdout: bytes, seen: str, tmp_path: Path, make: Make) -> None:
    (found,) = run(tmp_path, make, stdout)
    assert seen in found.seen and found.severity is Severity.WARNING and found.remedy


def test_a_script_that_hangs_is_one_finding(tmp_path: Path, make: Make) -> None:
    def ask(_argv: list[str], _stdin: bytes) -> ExecResult:
        raise EngineError("no end within 30 s")

    (found,) = plugins.run_script(script(tmp_path), ask, make())
    assert "30 s" in found.seen


KEYS = st.sampled_from(["findings", "severity", "title", "remedy", "text", "evidence"])
LEAVES = st.none() | st.booleans() | st.integers() | st.text()
TREES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner))


@given(st.binary() | TREES.map(lambda tree: json.dumps(tree).encode()))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_output_is_taken(make: Make, stdout: bytes) -> None:
    try:
        plugins.read_findings(stdout, make())
    except ValueError as problem:
        assert str(problem)


def test_helpers_and_other_files_are_left_alone(tmp_path: Path) -> None:
    for name in ("b.sh", "a.py", "_help.py", ".x.py", "README.md"):
        (tmp_path / name).write_text("")
    assert [path.name for path in plugins._scripts(tmp_path)] == ["a.py", "b.sh"]
    assert plugins._scripts(tmp_path / "none") == []
