"""The cache's programs as they run in a container: sent to a Python that has none of envgen."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from envgen.engine.values import ExecResult
from envgen.inside import resolve
from envgen.inside.run import STARTER, NoAnswer, ask
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


@pytest.mark.parametrize("operation", ["list", "clear", "look", "spaces", "baseline"])
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
