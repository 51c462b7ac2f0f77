"""scripts/fetch-source against a package index of its own on loopback."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from local import Quiet, serving

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "fetch-source"


def archive(*members: tuple[str, bytes | None, str]) -> bytes:
    """A .tar.gz of (name, content, link target): a content of None makes a symbolic link."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content, target in members:
            info = tarfile.TarInfo(name)
            info.uid = info.gid = 4242
            if content is None:
                info.type, info.linkname = tarfile.SYMTYPE, target
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


GOOD = archive(
    ("demo_pkg-1.0/setup.py", b"raise SystemExit('never run')\n", ""),
    ("demo_pkg-1.0/.gitignore", b"*.so\n", ""),
    ("demo_pkg-1.0/a.so", b"ignored by git, but part of the archive\n", ""),
    ("demo_pkg-1.0/link", None, "setup.py"),
)


class Index(ThreadingHTTPServer):
    """A package index with one file. Counts what is asked of it."""

    def __init__(self, data: bytes, digest: str | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        digest = digest or hashlib.sha256(data).hexdigest()
        self.requests: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_port}/simple"
        name = "demo_pkg-1.0.tar.gz"
        page = f'<a href="../../files/{name}#sha256={digest}">x</a>'
        self.pages = {"/simple/demo-pkg/": (page.encode(), "text/html"), f"/files/{name}": (data, "application/gzip")}


class Handler(Quiet):
    server: Index

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        body, kind = self.server.pages.get(self.path, (b"", ""))
        self.reply(body, 200 if kind else 404, kind)


@contextmanager
def serve(data: bytes, digest: str | None = None) -> Iterator[Index]:
    index = Index(data, digest)
    with serving(index):
        yield index


def fetch(index: Index, tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PIP_INDEX_URL": index.url, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_makes_a_clean_tagged_checkout(tmp_path: Path) -> None:
    with serve(GOOD) as index:
        answer = fetch(index, tmp_path, "demo.pkg==1.0", "out")
    assert answer.returncode == 0, answer.stderr
    assert git(tmp_path / "out", "ls-files").split() == [".gitignore", "a.so", "link", "setup.py"]
    assert git(tmp_path / "out", "status", "--porcelain") == ""
    assert git(tmp_path / "out", "describe", "--tags") == "v1.0"
    assert names(tmp_path) == ["cache", "out"]


def test_the_commit_is_the_same_everywhere_and_the_second_time_needs_no_index(tmp_path: Path) -> None:
    with serve(GOOD) as index:
        assert fetch(index, tmp_path, "demo-pkg==1.0", "one").returncode == 0
        asked = len(index.requests)
        assert fetch(index, tmp_path, "demo-pkg==1.0", "two").returncode == 0
        again = fetch(index, tmp_path, "demo-pkg==1.0", "one")
        assert len(index.requests) == asked
    assert again.returncode == 0 and "already" in again.stderr
    assert git(tmp_path / "one", "rev-parse", "HEAD") == git(tmp_path / "two", "rev-parse", "HEAD")


def test_the_users_own_commits_are_left_alone(tmp_path: Path) -> None:
    with serve(GOOD) as index:
        assert fetch(index, tmp_path, "demo-pkg==1.0", "out").returncode == 0
        (tmp_path / "out" / "mine").write_text("edited\n")
        git(tmp_path / "out", "add", "mine")
        git(tmp_path / "out", "-c", "user.name=me", "-c", "user.email=me@localhost", "commit", "-qm", "mine")
        assert fetch(index, tmp_path, "demo-pkg==1.0", "out").returncode == 0
    assert (tmp_path / "out" / "mine").read_text() == "edited\n"


def test_a_folder_with_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("x")
    with serve(GOOD) as index:
        answer = fetch(index, tmp_path, "demo-pkg==1.0", "out")
    assert answer.returncode == 1 and "remove it, or name another folder" in answer.stderr
    assert names(tmp_path / "out") == ["precious"]


@pytest.mark.parametrize(
    ("data", "digest", "arguments", "message"),
    [
        (GOOD, "0" * 64, (), "but the index says"),
        (GOOD, None, ("--sha256", "1" * 64), "--sha256 asks for"),
        (GOOD[: len(GOOD) // 2], None, (), "could not unpack"),
        (archive(("demo_pkg-1.0/../../evil", b"x", "")), None, (), "error:"),
        (archive(("demo_pkg-1.0/l", None, "/etc"), ("demo_pkg-1.0/l/evil", b"x", "")), None, (), "error:"),
        (archive(("demo_pkg-1.0/.git/hooks/post-commit", b"x", "")), None, (), "is not a source distribution"),
    ],
    ids=["arrived broken", "not what was asked for", "cut short", "dot-dot", "through a link", "brings its own .git"],
)
def test_a_bad_archive_leaves_nothing(
    tmp_path: Path, data: bytes, digest: str | None, arguments: tuple[str, ...], message: str
) -> None:
    with serve(data, digest) as index:
        answer = fetch(index, tmp_path, "demo-pkg==1.0", "out", *arguments)
    assert answer.returncode == 1 and message in answer.stderr and "Traceback" not in answer.stderr
    assert names(tmp_path) == ["cache"]


@pytest.mark.parametrize("requirement", ["demo-pkg", "demo-pkg>=1", "../x==1", "demo-pkg==../1"])
def test_a_bad_requirement_is_a_usage_error(tmp_path: Path, requirement: str) -> None:
    with serve(GOOD) as index:
        answer = fetch(index, tmp_path, requirement, "out")
        assert index.requests == []
    assert answer.returncode == 2 and "NAME==VERSION" in answer.stderr
