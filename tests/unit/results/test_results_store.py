"""A record survives whatever happens while it is written, and is read whole or refused with file and line."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envgen.errors import ExitCode, ResultsError, UsageError
from envgen.results import store
from envgen.results.clean import without_secrets
from envgen.results.model import plain

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**15), 10**15)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


def _run(folder: Path, samples: int = 3, end: bool = True) -> Path:
    run = store.start(folder, "bench", {"gpu": {"name": "GB10"}}, {"repeats": samples})
    for number in range(samples):
        run.sample({"decode_tps": 30.0 + number})
    run.end("passed", {"decode_tps": 31.0}) if end else run.close()
    return run.path


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = store.load(_run(tmp_path / "deep" / "results"))
    assert (record.kind, record.outcome, record.torn) == ("bench", "passed", False)
    assert record.path.name.endswith(f"-bench-{record.id}.jsonl")
    assert record.environment["gpu"]["name"] == "GB10"
    assert [sample.data["decode_tps"] for sample in record.samples] == [30.0, 31.0, 32.0]
    assert record.ended is not None and record.ended >= record.started
    assert [sample.at for sample in record.samples] == sorted(sample.at for sample in record.samples)


def test_a_record_cannot_be_changed(tmp_path: Path) -> None:
    record = store.load(_run(tmp_path))
    with pytest.raises(TypeError):
        record.environment["gpu"]["name"] = "other"  # type: ignore[index]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(environment=st.dictionaries(st.text(), JSON), data=st.dictionaries(st.text(), JSON))
def test_every_json_value_comes_back(tmp_path: Path, environment: dict[str, Any], data: dict[str, Any]) -> None:
    with store.start(tmp_path, "smoke", environment, data) as run:
        run.sample(data)
        run.end("passed", data)
    record = store.load(run.path)
    # A search may well find a key such as TOKEN; tests/unit/results/test_results_text.py is about those.
    assert plain(record.environment) == without_secrets(environment)
    assert plain(record.parameters) == without_secrets(data)
    assert [plain(value) for value in (record.samples[0].data, record.summary)] == [data] * 2
    run.path.unlink()


def test_what_json_has_no_number_for_becomes_a_word(tmp_path: Path) -> None:
    with store.start(tmp_path, "smoke", {}, {}) as run:
        run.sample({"logprob": float("nan"), "low": float("-inf"), "where": tmp_path, "odd": "\udc80"})
    data = store.load(run.path).samples[0].data
    assert (data["logprob"], data["low"], data["where"], data["odd"]) == ("nan", "-inf", str(tmp_path), "\udc80")


def test_each_sample_is_in_the_file_at_once(tmp_path: Path) -> None:
    run = store.start(tmp_path, "bench", {}, {})
    for number in range(3):
        run.sample({"n": number})
        record = store.load(run.path)
        assert len(record.samples) == number + 1
        assert record.outcome == "running"
    run.close()
    assert store.load(run.path).outcome == "interrupted"


def test_a_block_left_by_an_error_keeps_its_samples(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), store.start(tmp_path, "stress", {}, {}) as run:
        run.sample({"n": 1})
        raise KeyboardInterrupt
    record = store.load(run.path)
    assert (record.outcome, len(record.samples), record.ended) == ("interrupted", 1, None)


def test_a_file_cut_off_anywhere_is_read_or_refused_but_never_breaks(tmp_path: Path) -> None:
    whole = _run(tmp_path).read_bytes()
    first = whole.index(b"\n")
    cut = tmp_path / "cut.jsonl"
    for size in range(len(whole)):
        cut.write_bytes(whole[:size])
        if size < first:  # the start line itself is not whole
            with pytest.raises(ResultsError):
                store.load(cut)
            continue
        record = store.load(cut)
        lines = whole[:size].count(b"\n")
        complete_without_newline = whole[size : size + 1] == b"\n"
        assert record.torn == (not whole[:size].endswith(b"\n") and not complete_without_newline), size
        assert len(record.samples) >= min(lines - 1, 3)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.binary(max_size=200) | st.lists(JSON, max_size=4).map(lambda v: "\n".join(map(json.dumps, v)).encode())
)
def test_foreign_bytes_are_refused_with_the_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "foreign.jsonl"
    path.write_bytes(content)
    with pytest.raises(ResultsError) as caught:
        store.load(path)
    assert str(path) in str(caught.value)
    assert caught.value.exit_code == ExitCode.RESULTS


START = (
    '{"type":"start","format":1,"id":"aa","kind":"bench","started":"2026-01-09T16:25:01.000Z",'
    '"environment":{},"parameters":{}}'
)
END = '{"type":"end","ended":"2026-01-09T16:25:02Z","outcome":"passed","summary":{}}'


@pytest.mark.parametrize(
    ("lines", "line", "said"),
    [
        ([START.replace('"format":1', '"format":2')], 1, "newer than this envgen"),
        ([START.replace('"format":1', '"format":true')], 1, "format True"),
        ([START.replace("2026-01-09T16:25:01.000Z", "yesterday")], 1, "`started` is wrong"),
        ([START.replace("01.000Z", "01.000")], 1, "`started` is wrong"),
        ([START.replace('"environment":{}', '"environment":[]')], 1, "`environment` is wrong"),
        ([START.replace(',"parameters":{}', "")], 1, "`parameters` is missing"),
        ([START, "{"], 0, ""),  # the last line may be cut off
        ([START, "{", START], 2, "no JSON"),
        ([START, "[" * 100_000, START], 2, "no JSON"),
        ([START, '{"type":"sample","at":NaN,"data":{}}', START], 2, "no JSON"),
        ([START, '{"type":"sample","at":"1","data":{}}'], 2, "`at` is wrong"),
        ([START, '{"type":"sample","at":' + "9" * 400 + ',"data":{}}'], 2, "`at` is wrong"),
        ([START, '{"type":"other"}'], 2, "`type` is wrong"),
        ([START, "\x00\x00\x00", START], 2, "no JSON"),
        ([START, END, START], 3, "follows the end"),
        ([START, END.replace("passed", "")], 2, "`outcome` is wrong"),
    ],
)  # fmt: skip
def test_damage_is_named_by_file_and_line(tmp_path: Path, lines: list[str], line: int, said: str) -> None:
    path = tmp_path / "damaged.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    if not said:
        assert store.load(path).torn
        return
    with pytest.raises(ResultsError) as caught:
        store.load(path)
    assert f"{path}:{line}:1" in str(caught.value)
    assert said in str(caught.value)


def test_links_pipes_and_folders_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "link.jsonl").symlink_to(_run(tmp_path))
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "folder.jsonl").mkdir()
    for name, said in (("link", "link"), ("pipe", "regular"), ("folder", "regular")):
        with pytest.raises(ResultsError, match=said):
            store.load(tmp_path / f"{name}.jsonl")
    with pytest.raises(UsageError, match="no such file"):
        store.load(tmp_path / "none.jsonl")


def test_threads_share_a_run(tmp_path: Path) -> None:
    with store.start(tmp_path, "stress", {}, {}) as run:
        text = "x" * 5000
        threads = [
            threading.Thread(target=lambda k=k: [run.sample({"k": k, "n": n, "t": text}) for n in range(50)])
            for k in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        run.end("passed", {})
    samples = store.load(run.path).samples
    assert sorted((s.data["k"], s.data["n"]) for s in samples) == [(k, n) for k in range(8) for n in range(50)]


def test_two_runs_never_share_a_file(tmp_path: Path) -> None:
    runs = [store.start(tmp_path, "bench", {}, {}) for _ in range(50)]
    assert len({run.path for run in runs}) == 50
    for run in runs:
        run.end("passed", {})


def test_no_space_left_keeps_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = store.start(tmp_path, "bench", {}, {})
    run.sample({"n": 1})
    real = os.write

    def full(descriptor: int, data: Any) -> int:
        if run.samples == 1 and len(data) > 20:  # a short write first, as a real disk does it
            return real(descriptor, bytes(data)[:20])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(ResultsError) as caught:
        run.sample({"n": 2, "text": "x" * 100})
    assert (
        "no space left" in str(caught.value) and "1 samples" in str(caught.value) and str(run.path) in str(caught.value)
    )
    monkeypatch.undo()
    record = store.load(run.path)
    assert (len(record.samples), record.torn) == (1, False)
    run.end("failed", {"why": "no space"})  # there is space again: the end is told
    assert store.load(run.path).outcome == "failed"


def test_a_folder_that_is_a_file_or_closed_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "results").write_text("", encoding="utf-8")
    with pytest.raises(ResultsError, match="can't write results into"):
        store.start(tmp_path / "results", "bench", {}, {})

    def closed(*_args: object, **_kwargs: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", closed)
    with pytest.raises(ResultsError, match="Permission denied"):
        store.start(tmp_path, "bench", {}, {})


def test_no_space_for_the_first_line_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(ResultsError, match="No space left"):
        store.start(tmp_path, "bench", {}, {})
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_locks_still_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_args: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    assert store.load(_run(tmp_path, end=False)).outcome == "interrupted"
    assert store.load(_run(tmp_path)).outcome == "passed"


def test_nothing_is_written_after_the_end(tmp_path: Path) -> None:
    with store.start(tmp_path, "bench", {}, {}) as run:
        run.end("passed", {})
        with pytest.raises(ValueError, match="ended"):
            run.sample({})
    with pytest.raises(ValueError, match="kind"):
        store.start(tmp_path, "../bench", {}, {})
