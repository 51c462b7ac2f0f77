"""Records: what was measured survives a kill, a full disk is named, and no secret gets in."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from envgen.bench import record
from envgen.errors import ResultsError, UsageError


def write(folder: Path) -> Path:
    with record.start(folder, "bench", {"model": "m"}, {"runs": 3}) as run:
        for speed in (30.0, 31.0):
            run.sample({"decode_tps": speed})
        run.raw("pp32-tg8.json", b"{}")
        run.end("passed", {"cells": []})
    return run.path


def test_a_whole_record(tmp_path: Path) -> None:
    path = write(tmp_path)
    found = record.load(path)
    assert (found.kind, found.outcome, found.title) == ("bench", "passed", "m")
    assert [one["decode_tps"] for one in found.samples] == [30.0, 31.0]
    assert (path.with_suffix(".raw") / "pp32-tg8.json").read_text() == "{}"
    (tmp_path / "link.jsonl").symlink_to(path)  # is not followed
    assert record.runs(tmp_path)[0] == [found]


@pytest.mark.parametrize("cut", [0, 1, 7, 30])
def test_a_run_that_did_not_end(tmp_path: Path, cut: int) -> None:
    path = write(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-2]) + lines[-2][: -cut or None])
    found = record.load(path)
    assert found.outcome == "unfinished" and len(found.samples) == (1 if cut else 2)


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        (b"", 1, "Expecting value"), (b"[1]\n", 1, "list indices"),
        (b'{"type":"sample","format":1}\n', 1, "not the start of a run"),
        (b'{"type":"start","format":9}\n', 1, "not of format 1, which this envgen reads"),
        (b'{"type":"start","format":1,"id":"a"}\n', 1, "'started' is missing"),
        (b'{"type":"start","format":1,"started":"2026-01-09"}\noops\n', 2, "Expecting value"),
    ],
)  # fmt: skip
def test_damaged_files_are_named(tmp_path: Path, content: bytes, line: int, message: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    with pytest.raises(ResultsError, match=message) as caught:
        record.load(path)
    assert caught.value.problems[0].place and caught.value.problems[0].place.line == line
    write(tmp_path)
    found, bad = record.runs(tmp_path)
    assert len(found) == 1 and len(bad) == 1 and bad[0].startswith("x.jsonl: ")


def test_no_secret_gets_in_and_nan_is_a_text(tmp_path: Path) -> None:
    environment = {"env": {"HF_TOKEN": "hf_abc", "PORT": "1"}, "flags": ["--api-key", "s3cret", "--port", "8000"]}
    with record.start(tmp_path, "smoke", environment, {"note": "Bearer sk-0123456789abcdef0123456789abcdef"}) as run:
        run.sample({"decode_tps": float("nan"), "itl_ms": float("inf")})
    text = run.path.read_text()
    assert "hf_abc" not in text and "s3cret" not in text and "sk-0123" not in text and '"8000"' in text
    assert json.loads(text.splitlines()[1])["data"] == {"decode_tps": "NaN", "itl_ms": "Infinity"}


def test_no_space_and_no_folder(tmp_path: Path) -> None:
    """A real device that is always full."""
    with record.start(tmp_path, "bench", {}, {}) as run:
        run.sample({})
        os.dup2(os.open("/dev/full", os.O_WRONLY), run._descriptor)
        with pytest.raises(ResultsError, match="No space left on device; kept 1 sample of run"):
            run.sample({})
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError, match="can't write results into"):
        record.start(tmp_path / "file" / "results", "bench", {}, {})


def test_names_of_runs(tmp_path: Path) -> None:
    first, second = (record.load(write(tmp_path)) for _ in range(2))
    for name, wanted in (("latest", second), ("latest~1", first), (first.id[:6], first), (first.path.name, first)):
        assert record.resolve(tmp_path, name) == wanted
    for name in ("latest~2", "zzzz", ""):
        with pytest.raises(UsageError, match=f"no run '{name}' among the 2"):
            record.resolve(tmp_path, name)
    with pytest.raises(ResultsError, match="can't be read: No such file"):
        record.resolve(tmp_path, "none.jsonl")
