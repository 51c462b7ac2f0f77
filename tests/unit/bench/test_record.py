"""Records: what was measured survives a kill, a full disk is named, and no secret gets in."""

from __future__ import annotations

import json
import os
from datetime import datetime, timezone
from pathlib import Path

import pytest

from envgen.bench import record
from envgen.errors import ResultsError, UsageError

WHEN = datetime(2026, 1, 9, tzinfo=timezone.utc)


def write(folder: Path, samples: int = 2, kind: str = "bench") -> Path:
    with record.start(folder, kind, {"model": "m"}, {"runs": 3}) as run:
        for number in range(samples):
            run.sample({"decode_tps": 30.0 + number})
        run.end("passed", {"cells": []})
    return run.path


def test_a_whole_record(tmp_path: Path) -> None:
    found = record.load(write(tmp_path))
    assert (found.kind, found.outcome, found.title, found.torn) == ("bench", "passed", "m", False)
    assert [one["decode_tps"] for one in found.samples] == [30.0, 31.0]
    assert found.ended and found.ended >= found.started
    ((listed,), _) = record.runs(tmp_path)
    assert listed.outcome == "passed" and listed.samples == ()


def test_a_run_that_goes_on_and_one_that_was_killed(tmp_path: Path) -> None:
    with record.start(tmp_path, "stress", {}, {}) as run:
        run.sample({"latency_ms": 1.0})
        assert record.load(run.path).outcome == "running"
    found = record.load(run.path)
    assert found.outcome == "interrupted" and len(found.samples) == 1


@pytest.mark.parametrize("cut", [1, 7, 30])
def test_a_line_that_is_cut_off(tmp_path: Path, cut: int) -> None:
    path = write(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-2]) + lines[-2][:-cut])
    found = record.load(path)
    assert found.outcome == "interrupted" and len(found.samples) == 1 and found.torn


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "Expecting value"),
        (b"hello\n", "Expecting value"),
        (b"[1]\n", "list indices"),
        (b'{"type":"sample","format":1}\n', "not the start of a run"),
        (b'{"type":"start","format":9}\n', "not of format 1, which this envgen reads"),
        (b'{"type":"start","format":1,"id":"a"}\n', "'kind' is missing"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    with pytest.raises(ResultsError, match=message):
        record.load(path)
    write(tmp_path)
    found, bad = record.runs(tmp_path)
    assert len(found) == 1 and len(bad) == 1 and bad[0].startswith("x.jsonl: ")


def test_damage_in_the_middle_has_its_line(tmp_path: Path) -> None:
    path = write(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"oops\n" + b"".join(lines[1:]))
    with pytest.raises(ResultsError) as caught:
        record.load(path)
    assert caught.value.problems[0].place and caught.value.problems[0].place.line == 2


def test_links_are_not_followed(tmp_path: Path) -> None:
    path = write(tmp_path / "other")
    (tmp_path / "link.jsonl").symlink_to(path)
    assert record.runs(tmp_path)[0] == []


def test_no_secret_gets_in(tmp_path: Path) -> None:
    environment = {"env": {"HF_TOKEN": "hf_abc", "PORT": "1"}, "flags": ["--api-key", "s3cret", "--port", "8000"]}
    with record.start(tmp_path, "smoke", environment, {"note": "Bearer sk-0123456789abcdef0123456789abcdef"}) as run:
        run.end("passed", {})
    text = run.path.read_text()
    assert "hf_abc" not in text and "s3cret" not in text and "sk-0123" not in text and '"8000"' in text


def test_nan_is_a_text(tmp_path: Path) -> None:
    with record.start(tmp_path, "bench", {}, {}) as run:
        run.sample({"decode_tps": float("NaN"), "itl_ms": float("inf")})
    assert json.loads(run.path.read_text().splitlines()[1])["data"] == {"decode_tps": "NaN", "itl_ms": "Infinity"}


def test_no_space(tmp_path: Path) -> None:
    """A real device that is always full."""
    with record.start(tmp_path, "bench", {}, {}) as run:
        run.sample({})
        os.dup2(os.open("/dev/full", os.O_WRONLY), run._descriptor)
        with pytest.raises(ResultsError, match="no space left for the results; kept 1 sample of run"):
            run.sample({})


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError, match="can't write results into"):
        record.start(tmp_path / "file" / "results", "bench", {}, {})


def test_what_a_tool_wrote_lies_beside_it(tmp_path: Path) -> None:
    with record.start(tmp_path, "bench", {}, {}) as run:
        run.raw("pp32-tg8.json", b"{}")
    assert (run.path.with_suffix(".raw") / "pp32-tg8.json").read_text() == "{}"


def test_imported_twice_is_imported_once(tmp_path: Path) -> None:
    samples = [{"unit": "aggregate", "decode_tps": 60.0}]
    path, new = record.write_imported(tmp_path, "x", WHEN, {"imported": {"file": "a"}}, {}, samples)
    again, newer = record.write_imported(tmp_path, "x", WHEN, {"imported": {"file": "b"}}, {}, samples)
    assert (new, newer) == (True, False) and path == again
    assert record.load(path).kind == "imported"


def test_names_of_runs(tmp_path: Path) -> None:
    first, second = write(tmp_path), write(tmp_path)
    assert record.resolve(tmp_path, "latest") == second and record.resolve(tmp_path, "latest~1") == first
    assert record.resolve(tmp_path, record.load(first).id[:6]) == first
    assert record.resolve(tmp_path, first.name) == first
    for name, message in (("latest~2", "only 2 runs"), ("zzzz", "no run 'zzzz'"), ("", "no run ''")):
        with pytest.raises(UsageError, match=message):
            record.resolve(tmp_path, name)
    with pytest.raises(UsageError, match="no runs in"):
        record.resolve(tmp_path / "none", "latest")
    with pytest.raises(UsageError, match="no such file"):
        record.load(record.resolve(tmp_path, "none.jsonl"))
