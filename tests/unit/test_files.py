"""Reading and writing files that somebody else may have put there."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from envgen import files
from envgen.errors import RefusedError, UsageError


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_reading(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("a")
    assert files.read(tmp_path / "a", limit=5) == b"12345"
    assert files.read(tmp_path / "link") == b"12345"
    with pytest.raises(OSError, match="larger than"):
        files.read(tmp_path / "a", limit=4)
    with pytest.raises(files.NotAFile, match="is a link"):
        files.read(tmp_path / "link", follow=False)
    with pytest.raises(FileNotFoundError):
        files.read(tmp_path / "none")


@pytest.mark.parametrize("kind", ["fifo", "folder", "device"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(files.NotAFile):
        files.read(path)


def test_writing(tmp_path: Path) -> None:
    files.write(tmp_path / "a", b"1")
    (tmp_path / "a").chmod(0o751)
    files.write(tmp_path / "a", b"2")
    assert (tmp_path / "a").read_bytes() == b"2"
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o751
    files.write(tmp_path / "b", b"", mode=0o600)
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        files.write(tmp_path / "a", b"3", new=True)
    files.write(tmp_path / ("n" * 255), b"")
    files.write(tmp_path / "made" / "deep" / "c", b"3", within=tmp_path)
    assert names(tmp_path) == ["a", "b", "made", "n" * 255]
    assert (tmp_path / "made" / "deep" / "c").read_bytes() == b"3"


def test_a_link_is_replaced_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "x").symlink_to(victim)
    files.write(tmp_path / "root" / "x", b"new", within=tmp_path / "root")
    assert victim.read_bytes() == b"precious"
    assert (tmp_path / "root" / "x").read_bytes() == b"new"
    (tmp_path / "root" / "log").symlink_to(victim)
    with pytest.raises(FileExistsError):
        files.create(tmp_path / "root" / "log", within=tmp_path / "root")


@pytest.mark.parametrize("level", [".envgen", ".envgen/state", ".envgen/state/deep"])
def test_no_folder_of_ours_is_a_link(tmp_path: Path, level: str) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    (root / level).parent.mkdir(parents=True)
    (root / level).symlink_to(outside)
    with pytest.raises(RefusedError, match="is a link"):
        files.state_dir(root, "state", "deep")
    with pytest.raises(RefusedError, match="is a link"):
        files.write(root / ".envgen/state/deep/file", b"", within=root)
    assert names(outside) == []


def test_no_half_file_and_no_leftover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write(tmp_path / "a", b"old")

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space") as caught:
        files.write(tmp_path / "a", b"new")
    assert caught.value.filename == str(tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert names(tmp_path) == ["a"]
    problem = files.trouble(caught.value).problems[0]
    assert (problem.message, problem.hint) == (
        f"{tmp_path}/a: no space left on device",
        "free some space on that file system",
    )


def test_what_a_project_may_let_us_write(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "out").symlink_to(tmp_path / "in")
    (tmp_path / "root" / "near").symlink_to("real")
    assert files.inside(tmp_path / "root" / "near", tmp_path / "root") == tmp_path / "root" / "real"
    with pytest.raises(RefusedError, match="leads it out"):
        files.inside(tmp_path / "root" / "out", tmp_path / "root")


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    assert files.cache_dir({"XDG_CACHE_HOME": "/c", "HOME": "/h"}) == Path("/c/envgen")
    assert files.cache_dir({"XDG_CACHE_HOME": "c", "HOME": "/h"}) == Path("/h/.cache/envgen")  # relative: ignored
    monkeypatch.setattr(Path, "expanduser", lambda _path: (_ for _ in ()).throw(RuntimeError("no home")))
    with pytest.raises(UsageError, match="no home folder"):
        files.cache_dir({})
