"""cache clear: under FlashInfer's own locks, which are never deleted."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import pytest
from jitcache_asking import bad, good, hold
from jitcache_layouts import lost, put, release, snapshot


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_held_lock_is_refused(tmp_path: Path, dry_run: bool) -> None:
    shelf = release(tmp_path, "0.5.3")
    fd = hold(shelf.ops / "tmp/page.lock")
    try:
        document = bad("refused", tmp_path, "rope", "page", dry_run=dry_run)
        assert document["data"]["held"] == ["0.5.3/121a/cached_ops/tmp/page.lock"]
        good(tmp_path, "rope")
    finally:
        os.close(fd)
    good(tmp_path, "page")


def test_a_batch_build_is_refused(tmp_path: Path) -> None:
    shelf = release(tmp_path, "0.5.3")
    release(tmp_path, "0.7.2.post1")
    fd = hold(shelf.ops / "tmp/flashinfer_jit.lock")
    try:
        document = bad("refused", tmp_path, "page")
        assert document["data"]["held"][0].endswith("flashinfer_jit.lock")
        good(tmp_path, "page", version="0.7.2.post1")  # another version's batch is not a hindrance
    finally:
        os.close(fd)


def test_a_lock_inside_a_module_is_respected(tmp_path: Path) -> None:
    shelf = release(tmp_path, "0.7.2.post1")
    fd = hold(shelf.ops / "kda_ptx/deep/module.cubin.lock")
    try:
        document = bad("refused", tmp_path, "kda_ptx")
        assert "kda_ptx/deep/module.cubin.lock" in document["data"]["held"][0]
    finally:
        os.close(fd)
    good(tmp_path, "kda_ptx")


def test_lock_files_are_made_as_filelock_makes_them_and_never_deleted(tmp_path: Path) -> None:
    shelf = release(tmp_path, "0.5.3")
    for path in (shelf.ops / "tmp").iterdir():
        path.unlink()
    (shelf.ops / "tmp").rmdir()
    good(tmp_path, "page")
    assert sorted(p.name for p in (shelf.ops / "tmp").iterdir()) == ["flashinfer_jit.lock", "page.lock"]
    fd = hold(shelf.ops / "tmp/page.lock")  # released
    os.close(fd)


@pytest.mark.parametrize("what", ["tmp", "tmp/page.lock", "tmp/flashinfer_jit.lock"])
def test_lock_files_that_are_links_are_refused(tmp_path: Path, what: str) -> None:
    cache, outside = tmp_path / "cache", tmp_path / "outside"
    shelf = release(cache, "0.5.3")
    path = shelf.ops / what
    if path.is_dir():
        path.rename(outside)
    else:
        path.unlink(missing_ok=True)
        put(outside, "mine")
    path.symlink_to(outside)
    before = snapshot(tmp_path)
    bad("refused", cache, "page")
    assert not lost(before, tmp_path)


def test_a_lock_that_is_a_fifo_does_not_hang(tmp_path: Path) -> None:
    shelf = release(tmp_path, "0.5.3")
    (shelf.ops / "tmp/page.lock").unlink()
    os.mkfifo(shelf.ops / "tmp/page.lock")
    bad("refused", tmp_path, "page")


def test_a_lock_file_replaced_while_we_took_it_is_taken_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Newer filelock releases unlink on release: a lock on the old file would guard nothing."""
    from envgen.inside.jit import locks

    put(tmp_path / "page.lock", b"")
    real, swapped = fcntl.flock, list[Any]()

    def swap(fd: int, how: int) -> None:
        real(fd, how)
        if not swapped:
            swapped.append(os.fstat(fd).st_ino)
            (tmp_path / "keep").hardlink_to(tmp_path / "page.lock")  # or the inode would be used again
            (tmp_path / "page.lock").unlink()
            put(tmp_path / "page.lock", b"")

    monkeypatch.setattr("envgen.inside.jit.locks.fcntl.flock", swap)
    folder = os.open(tmp_path, os.O_RDONLY)
    fd = locks.acquire("page.lock", folder, "page.lock")
    assert os.fstat(fd).st_ino == (tmp_path / "page.lock").stat().st_ino != swapped[0]
    os.close(fd)
    os.close(folder)
