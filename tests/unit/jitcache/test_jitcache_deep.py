"""Folders nested without end, by a container or a hostile archive of before: nothing is wedged by them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from jitcache_asking import good
from jitcache_layouts import Shelf, put, release
from test_jitcache_archive import load, save

from envgen.inside.jit import tree
from envgen.inside.jit.main import answer

DEPTH = 1100  # more than Python recurses; the kernel's own time grows with its square


def nest(folder: Path, depth: int = DEPTH, name: str = "d") -> None:
    """Too deep for a path of the system's: made one by one, as a container would."""
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=fd)
        inner = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    file = os.open("end", os.O_WRONLY | os.O_CREAT, dir_fd=fd)
    os.close(file)
    os.close(fd)


@pytest.fixture(autouse=True)
def _leave_nothing_deep(tmp_path: Path) -> Iterator[None]:
    """pytest itself can't remove such folders."""
    yield
    fd = os.open(tmp_path.parent, os.O_RDONLY)
    tree.remove(tmp_path.name, fd, os.fstat(fd).st_dev, [], "")
    os.close(fd)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    shelf = release(tmp_path / "cache", "0.7.2.post1")
    nest(shelf.ops / "page" / "deep")
    return tmp_path / "cache"


def test_it_is_listed_and_reported(root: Path) -> None:
    document = answer({"operation": "list", "root": str(root)})
    assert document["ok"], document
    module = next(one for one in document["result"]["modules"] if one["name"] == "page")
    assert module["unread"] == 1
    assert any("nested too deeply" in problem for problem in document["result"]["problems"])
    assert all(len(problem) < 500 for problem in document["result"]["problems"])


@pytest.mark.parametrize("patterns", [["page"], []])
def test_it_is_cleared_whole(root: Path, patterns: list[str]) -> None:
    result = good(root, *patterns, all=not patterns)
    assert result["errors"] == []
    assert not (root / "0.7.2.post1/121a/cached_ops/page").exists()
    assert not list(root.rglob(".envgen-*"))
    assert (root / "0.7.2.post1/121a/cached_ops/rope").exists() == bool(patterns)


def test_it_is_left_out_of_an_archive_and_all_else_is_saved(root: Path, tmp_path: Path) -> None:
    saved = save(root, tmp_path / "file")
    assert saved["ok"], saved
    assert any("left out: is nested more than 40 folders" in problem for problem in saved["result"]["problems"])
    loaded = load(tmp_path / "there", tmp_path / "file")
    assert loaded["ok"], loaded
    assert (tmp_path / "there/0.7.2.post1/121a/cached_ops/page/page.so").is_file()
    assert loaded["result"]["modules"] == saved["result"]["modules"]


def test_a_stage_of_old_is_swept_by_the_next_load(root: Path, tmp_path: Path) -> None:
    save(root, tmp_path / "file")
    there = tmp_path / "there"
    nest(there / ".envgen-work-5cac0360feddb388/0.5.3/cached_ops/page")
    assert load(there, tmp_path / "file")["ok"]
    assert not list(there.glob(".envgen-*-*"))


def test_a_stage_is_shown_as_left_behind_and_cleared(root: Path) -> None:
    nest(root / ".envgen-work-5cac0360feddb388/0.5.3")
    shown = answer({"operation": "list", "root": str(root)})["result"]["leftovers"]
    assert shown["count"] == 1
    assert good(root, "rope")["leftovers"]["count"] == 1
    assert not list(root.glob(".envgen-*-*"))


def test_a_stage_that_can_not_be_removed_stops_nothing(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something is mounted in it, say: it is told, and skipped."""
    save(root, tmp_path / "file")
    put(root / ".envgen-work-5cac0360feddb388/0.5.3/x")
    unlink = os.unlink

    def refuse(name: str, **more: int) -> None:
        if name == "x":
            raise PermissionError(1, "Operation not permitted")
        unlink(name, **more)

    monkeypatch.setattr("envgen.inside.jit.tree.os.unlink", refuse)
    loaded = load(root, tmp_path / "file", replace=True)
    assert loaded["ok"], loaded
    assert any("Operation not permitted" in problem for problem in loaded["result"]["problems"])
    cleared = good(root, "rope")
    assert [module["name"] for module in cleared["modules"]] == ["rope"]
    assert any("Operation not permitted" in error for error in cleared["errors"])


def test_gc_removes_a_deep_namespace_and_what_a_killed_one_left(tmp_path: Path) -> None:
    nest(tmp_path / "envgen-0123456789ab/x")
    nest(tmp_path / ".envgen-work-0123/x")
    put(tmp_path / "envgen-ba9876543210/x")
    request = {"operation": "spaces", "parent": str(tmp_path), "remove": ["envgen-0123456789ab"]}
    assert answer(request) == {"ok": True, "result": {"spaces": [], "errors": []}}
    assert [path.name for path in tmp_path.iterdir()] == ["envgen-ba9876543210"]


def test_a_namespace_is_measured_however_deep(tmp_path: Path) -> None:
    put(tmp_path / "a.so")
    nest(tmp_path / "deep")
    document = answer({"operation": "spaces", "roots": [str(tmp_path)]})
    assert document["result"]["spaces"][0]["libraries"] == 1


def test_removal_never_leaves_the_folder_and_needs_few_descriptors(tmp_path: Path) -> None:
    outside = put(tmp_path / "outside/precious")
    top = tmp_path / "top"
    for number in range(30):
        nest(top / f"a{number}/b/c", 50, f"n{number}")
    (top / "a1/link").symlink_to(tmp_path / "outside")
    os.mkfifo(top / "a2/fifo")
    errors: list[str] = []
    fd = os.open(tmp_path, os.O_RDONLY)
    used = len(list(Path("/proc/self/fd").iterdir()))
    tree.remove("top", fd, os.fstat(fd).st_dev, errors, "top")
    assert len(list(Path("/proc/self/fd").iterdir())) == used
    os.close(fd)
    assert errors == []
    assert not top.exists()
    assert outside.exists()


def test_what_is_on_another_file_system_is_left_alone(tmp_path: Path) -> None:
    put(tmp_path / "top/a/b/x")
    errors: list[str] = []
    fd = os.open(tmp_path, os.O_RDONLY)
    tree.remove("top", fd, -1, errors, "top")
    os.close(fd)
    assert errors == ["top: is on another file system; left alone"]
    assert (tmp_path / "top/a/b/x").exists()


def test_answers_stay_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More modules than an answer holds are counted, and cleared nevertheless."""

    monkeypatch.setattr(tree, "LISTED", 5)
    shelf = Shelf(tmp_path, "0.7.2.post1")
    for number in range(12):
        put(shelf.ops / f"m{number:02}" / "x")
    listed = answer({"operation": "list", "root": str(tmp_path)})["result"]
    assert len(listed["modules"]) == 5
    assert any("7 more modules" in problem for problem in listed["problems"])
    cleared = good(tmp_path, all=True)
    assert len(cleared["modules"]) == 5
    assert cleared["freed"] == 12 * 64
    assert not [path for path in shelf.ops.iterdir() if path.name.startswith("m")]
