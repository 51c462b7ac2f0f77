"""The folder of records: listing, naming and removing runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envgen.errors import RefusedError, ResultsError, UsageError
from envgen.results import shelf as shelves
from envgen.results import store


def make(folder: Path, count: int = 1, kind: str = "bench") -> list[Path]:
    paths = []
    for number in range(count):
        with store.start(folder, kind, {"profile": "cpu"}, {}) as run:
            run.sample({"n": number})
            run.end("passed", {"decode_tps": number})
        paths.append(run.path)
    return paths


def rename(path: Path, ident: str) -> Path:
    """The same record with another id, in content and name."""
    old = path.stem.rpartition("-")[2]
    target = path.with_name(path.name.replace(old, ident))
    path.write_text(path.read_text(encoding="utf-8").replace(old, ident), encoding="utf-8")
    return path.rename(target)


def test_the_list_reads_heads_and_ends(tmp_path: Path) -> None:
    make(tmp_path, 3)
    running = store.start(tmp_path, "stress", {"variant": "marlin"}, {})
    running.sample({"n": 1})
    found = shelves.scan(tmp_path)
    assert [(e.kind, e.outcome) for e in found.entries] == [("bench", "passed")] * 3 + [("stress", "running")]
    assert found.entries[1].summary["decode_tps"] == 1
    assert found.entries[3].environment["variant"] == "marlin"
    running.close()
    assert shelves.scan(tmp_path).entries[3].outcome == "interrupted"


def test_an_end_line_longer_than_the_tail_is_found(tmp_path: Path) -> None:
    with store.start(tmp_path, "bench", {"long": "y" * 50_000}, {}) as run:
        run.sample({"text": "z" * 70_000})
        run.end("passed", {"why": "x" * 100_000})
    (entry,) = shelves.scan(tmp_path).entries
    assert (entry.outcome, len(entry.summary["why"])) == ("passed", 100_000)


def test_a_damaged_file_is_a_row_and_hides_nothing(tmp_path: Path) -> None:
    make(tmp_path, 2)
    (tmp_path / "20260109T162501.000Z-bench-deadbeef.jsonl").write_text("{nonsense\n", encoding="utf-8")
    (tmp_path / "notes.jsonl").write_text("", encoding="utf-8")
    (tmp_path / "README.md").write_text("not a record", encoding="utf-8")
    found = shelves.scan(tmp_path).entries
    assert [entry.outcome for entry in found] == ["damaged", "damaged", "passed", "passed"]
    assert (found[0].id, found[0].kind) == ("deadbeef", "bench")
    assert ":1:1" in found[0].damaged


def test_a_folder_that_is_not_there_holds_nothing_and_a_file_is_no_folder(tmp_path: Path) -> None:
    assert shelves.scan(tmp_path / "none").entries == ()
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ResultsError, match="can't read the results"):
        shelves.scan(tmp_path / "file")


def test_links_are_told_and_not_followed(tmp_path: Path) -> None:
    (outside,) = make(tmp_path / "elsewhere")
    folder = tmp_path / "results"
    folder.mkdir()
    link = folder / outside.name
    link.symlink_to(outside)
    found = shelves.scan(folder)
    assert (found.entries, found.links) == ((), (outside.name,))
    with pytest.raises(RefusedError, match="no regular file"):
        shelves.removable(found, outside.name)
    with pytest.raises(RefusedError, match="it is not in"):
        shelves.removable(found, str(outside))
    with pytest.raises(RefusedError, match="it is not in"):
        shelves.removable(found, f"../elsewhere/{outside.name}")
    assert outside.exists() and link.is_symlink()


def test_runs_have_short_names(tmp_path: Path) -> None:
    paths = [
        rename(path, ident) for path, ident in zip(make(tmp_path, 3), ("aa11aaaa", "aa22aaaa", "bb33aaaa"), strict=True)
    ]
    shelf = shelves.scan(tmp_path)
    for name, path in (("aa1", 0), ("b", 2), ("aa22aaaa", 1), ("latest", 2), ("latest~2", 0)):
        assert shelves.resolve(shelf, name) == paths[path], name
    assert shelves.resolve(shelf, str(paths[0])) == paths[0]
    assert shelves.resolve(shelf, paths[1].name) == paths[1]
    for name, said in (
        ("aa", "means 2 runs: aa11aaaa (bench), aa22aaaa (bench)"),
        ("bb33aaab", "did you mean 'bb33aaaa'?"),
        ("lates", "did you mean 'latest'?"),
        ("zzz", "`envgen results list`"),
        ("latest~3", "only 3 runs"),
        ("", "there is no run"),
    ):
        with pytest.raises(UsageError) as caught:
            shelves.resolve(shelf, name)
        assert said in str(caught.value), name
    with pytest.raises(UsageError, match="there are no runs"):
        shelves.resolve(shelves.scan(tmp_path / "none"), "latest")


def test_removing_takes_one_file_and_no_running_one(tmp_path: Path) -> None:
    first, second = make(tmp_path, 2)
    running = store.start(tmp_path, "bench", {}, {})
    shelf = shelves.scan(tmp_path)
    with pytest.raises(RefusedError, match="still being written"):
        shelves.removable(shelf, running.id)
    with pytest.raises(RefusedError, match="still being written"):
        shelves.remove(shelf, running.path)
    shelves.remove(shelf, shelves.removable(shelf, first.stem.rpartition("-")[2]))
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([second.name, running.path.name])
    running.close()


def test_what_became_a_link_meanwhile_is_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    (path,) = make(folder)
    shelf = shelves.scan(folder)
    target = shelves.removable(shelf, "latest")
    precious = tmp_path / "precious.jsonl"
    path.rename(precious)
    path.symlink_to(precious)
    with pytest.raises(ResultsError, match="can't remove"):
        shelves.remove(shelf, target)
    assert precious.exists()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
@given(name=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40) | st.sampled_from(["..", ".", "/", "../x.jsonl", "/etc/passwd"]))  # fmt: skip  # noqa: E501
def test_no_name_removes_anything_outside(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "results"
    if not folder.exists():
        make(folder)
    shelf = shelves.scan(folder)
    try:
        target = shelves.removable(shelf, name)
    except (RefusedError, UsageError, ResultsError):
        return
    assert os.fspath(target.parent) == os.fspath(folder) and target == shelf.entries[0].path
