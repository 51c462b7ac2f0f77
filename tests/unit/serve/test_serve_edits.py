"""Which files of a container are edits of its installed packages, from inside and by `docker diff`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envgen.engine.values import ChangedPath
from envgen.errors import EngineError
from envgen.inside import edits as inside
from envgen.inside import run
from envgen.serve.edits import Edits, edits_by_diff, edits_inside, edits_of

SITE = "/usr/local/lib/python3.12/dist-packages"


@pytest.mark.parametrize(
    ("path", "file"),
    [
        (f"{SITE}/transformers/__init__.py", "transformers/__init__.py"),
        (f"{SITE}/numpy-1.26.4.dist-info/METADATA", "numpy-1.26.4.dist-info/METADATA"),
        ("/opt/venv/lib/python3.12/site-packages/torch/lib/libtorch.so.2", "torch/lib/libtorch.so.2"),
        (f"{SITE}/evil.pth", "evil.pth"),
        (f"{SITE}/transformers/__pycache__/a.cpython-312.pyc", ""),
        (f"{SITE}/transformers/__pycache__/a.py", ""),
        (f"{SITE}/flashinfer/data/csrc/nv_internal/a.generated.cu", ""),  # FlashInfer's JIT
        (f"{SITE}/transformers", ""),
        ("/root/.cache/x/a.py", ""),
        ("/workspace/a.py", ""),
    ],
)
def test_code_and_metadata_count(path: str, file: str) -> None:
    for kind in ("changed", "removed", "added"):
        assert edits_of([ChangedPath(path, kind)]).files == ((file,) if file else ())


def test_some_files_are_named() -> None:
    edits = edits_of(ChangedPath(f"{SITE}/a/{number}.py", "changed") for number in range(5))
    assert str(edits) == "a/0.py, a/1.py, a/2.py and 2 more"
    assert edits.were_changed == "5 files of installed packages were changed in the container"


def test_from_inside_by_the_time_of_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a change can't be set, unlike that of the content: pip keeps the archive's."""
    site = tmp_path / "site-packages"
    for name in ("a/__init__.py", "a/data/x.cu", "a/__pycache__/b.py", "a-1.dist-info/METADATA"):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).touch()
    before = time.time() + 0.02
    time.sleep(0.05)
    (site / "a" / "new.so").touch()
    os.utime(site / "a" / "new.so", (1, 1))
    monkeypatch.setattr(sys, "path", ["", str(site), str(site), str(tmp_path)])
    monkeypatch.setattr(os, "stat", lambda _path: SimpleNamespace(st_dev=1, st_mode=0o40755))
    assert inside.answer({"since": before}) == {"count": 1, "files": ["a/new.so"]}
    assert inside.answer({"since": 0.0})["count"] == 3
    monkeypatch.setattr(inside, "TOO_MANY", 2)  # the driver copies all files for a container
    assert inside.answer({"since": 0.0}) == {"count": 0, "files": []}


def test_an_engine_without_an_answer() -> None:
    def fails(_id: str) -> Any:
        raise EngineError("the Docker Engine did not answer within 10 s")

    engine: Any = SimpleNamespace(changes=fails, inspect=fails)
    container: Any = SimpleNamespace(id="1", state="running")
    assert edits_by_diff(engine, container) == Edits() == edits_inside(engine, container, "python3")


def test_an_edit_in_the_first_second_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The container was made late in a second, and the edit came in the same one."""
    asked: list[Any] = []
    monkeypatch.setattr(run, "in_container", lambda *_: None)

    def ask(_execute: Any, _python: str, _program: run.Program, request: Any, **_: Any) -> Any:
        asked.append(request)
        return {"count": 0, "files": []}

    monkeypatch.setattr(run, "ask", ask)
    engine: Any = SimpleNamespace(inspect=lambda _id: {"Created": "2026-11-26T02:45:31.71506081Z"})
    edits_inside(engine, SimpleNamespace(id="1", state="running"), "python3")  # type: ignore[arg-type]
    assert asked == [{"since": 1795661131.71506081}]
