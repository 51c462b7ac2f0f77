"""What goes, goes whole and never leads out of the folder; what can't go is reported and stops nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from jitcache_asking import answer, good
from jitcache_layouts import put, release

from envgen.inside.jit import tree


def test_what_can_not_be_removed_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a killed clear left holds a file that can't go."""
    root = tmp_path / "cache"
    release(root, "0.7.2.post1")
    put(root / ".envgen-work-5cac0360feddb388/0.5.3/x")
    unlink = os.unlink

    def refuse(name: str, **more: int) -> None:
        if name == "x":
            raise PermissionError(1, "Operation not permitted")
        unlink(name, **more)

    monkeypatch.setattr("envgen.inside.jit.tree.os.unlink", refuse)
    cleared = good(root, "rope")
    assert [module["name"] for module in cleared["modules"]] == ["rope"]
    assert cleared["errors"] == [".envgen-work-5cac0360feddb388/0.5.3/x: Operation not permitted"]


def test_a_namespace_goes_with_what_a_killed_run_left(tmp_path: Path) -> None:
    put(tmp_path / "envgen-0123456789ab/x/y/z")
    put(tmp_path / ".envgen-work-0123/x")
    put(tmp_path / "envgen-ba9876543210/x")
    request = {"operation": "spaces", "parent": str(tmp_path), "remove": ["envgen-0123456789ab"]}
    assert answer(request) == {"ok": True, "result": {"spaces": [], "errors": []}}
    assert [path.name for path in tmp_path.iterdir()] == ["envgen-ba9876543210"]


def test_removal_never_leaves_the_folder(tmp_path: Path) -> None:
    outside = put(tmp_path / "outside/precious")
    put(tmp_path / "top/a1/b/c/x")
    (tmp_path / "top/a1/link").symlink_to(tmp_path / "outside")
    (tmp_path / "top/a1/b/file").symlink_to(outside)
    os.mkfifo(tmp_path / "top/a1/fifo")
    errors: list[str] = []
    fd = os.open(tmp_path, os.O_RDONLY)
    tree.remove("top", fd, os.fstat(fd).st_dev, errors, "top")
    os.close(fd)
    assert errors == []
    assert not (tmp_path / "top").exists()
    assert outside.exists()


def test_what_is_on_another_file_system_is_left_alone(tmp_path: Path) -> None:
    put(tmp_path / "top/x")
    errors: list[str] = []
    fd = os.open(tmp_path, os.O_RDONLY)
    tree.remove("top", fd, -1, errors, "top")
    os.close(fd)
    assert errors == ["top: is on another file system; left alone"]
    assert (tmp_path / "top/x").exists()
