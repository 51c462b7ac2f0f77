"""The cache's programs as they run in a container: sent to a Python that has none of envgen."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from envgen.doctor.programs import IMPORT
from envgen.engine.values import ExecResult
from envgen.inside import resolve
from envgen.inside.run import STARTER, NoAnswer, ask, on_host
from envgen.jitcache.service import AGENT


def started(argv: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/", env={"HOME": "/"})


def held_open(argv: Sequence[str], stdin: bytes, timeout: float) -> ExecResult:
    """As the engine does it with ``hold``: stdin ends with the program."""
    with started(argv) as program:
        assert program.stdin is not None and program.stdout is not None
        program.stdin.write(stdin)
        program.stdin.flush()
        out = program.stdout.read()
    return ExecResult(program.returncode, out, b"")


@pytest.mark.parametrize("operation", ["list", "clear", "baseline"])
def test_each_operation_stands_alone(tmp_path: Path, operation: str) -> None:
    module = tmp_path / "0.7.2.post1/121a/cached_ops/page"
    module.mkdir(parents=True)
    (module / "build.ninja").write_text("build page.so: link\n")
    request = {"operation": operation, "root": str(tmp_path), "patterns": ["page"], "dry_run": True,
               "python": sys.executable}  # fmt: skip
    answer = ask(held_open, sys.executable, AGENT, request, timeout=60)
    assert not isinstance(answer, NoAnswer), answer
    assert answer["ok"], answer


def test_it_ends_with_whoever_asked() -> None:
    """Until a request has come there is nothing to watch; the end of stdin in the middle of it is an error too."""
    with started([sys.executable, *AGENT.flags, "-c", STARTER]) as program:
        assert program.stdin is not None
        program.stdin.close()
        program.stdin = None
        assert program.wait(60) == 1


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("kill -9 $$", "sh was killed: memory ran out, or somebody stopped it"),
        ("exit 3", "sh ended with 3 and printed nothing"),
        ("echo why; exit 3", "why"),
    ],
)
def test_a_resolver_that_ends_in_silence_has_a_reason(script: str, reason: str) -> None:
    with pytest.raises(resolve.Failed, match=f"^{reason}$"):
        resolve.run(["/bin/sh", "-c", script])


PACKAGES = [  # what is in a package, and how its import ends: in an error, with a code, or with a version
    ("import time; time.sleep(600)", "no answer in time", 1, ""),
    ("import sys; print('bye'); sys.exit(3)", "SystemExit", 0, ""),
    ("raise ImportError('libcuda.so.1: cannot open shared object file')", "ImportError", 0, ""),
    ("import os; os._exit(7)", "no answer", 7, ""),
    ("import ctypes; ctypes.string_at(0)", "no answer", -11, ""),
    ("print('x' * 10_000_000); __version__ = '1'", "", 0, "1"),
    ("import sys; sys.stdout.buffer.write(b'\\xff\\xfe{\"deep\": 1}\\n'); __version__ = '2'", "", 0, "2"),
]


@pytest.mark.parametrize(("code", "error", "status", "version"), PACKAGES)
def test_a_package_that_misbehaves_is_an_answer(
    tmp_path: Path, code: str, error: str, status: int, version: str
) -> None:
    (tmp_path / "odd.py").write_text(code + "\n")
    execute = on_host({"PYTHONPATH": str(tmp_path)})
    answer = ask(execute, sys.executable, IMPORT, {"package": "odd"}, timeout=2)
    if isinstance(answer, NoAnswer):
        assert (answer.error, answer.code, answer.is_late) == (error, status, "time" in error)
        assert status != -11 or any("Segmentation fault" in line for line in answer.stack)
    else:
        assert answer["answer"]["version"] == version != ""
