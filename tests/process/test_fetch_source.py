"""scripts/fetch-source against a package index of its own on loopback."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

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


class Index:
    """A package index with one file. Counts what is asked of it."""

    def __init__(self, data: bytes, digest: str | None = None, as_html: bool = False) -> None:
        digest = digest or hashlib.sha256(data).hexdigest()
        self.requests: list[str] = []
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                index.requests.append(self.path)
                if self.path == "/simple/demo-pkg/" and as_html:
                    kind = "text/html"
                    body = f'<a href="../../files/demo_pkg-1.0.tar.gz#sha256={digest}">x</a>'.encode()
                elif self.path == "/simple/demo-pkg/":
                    kind = "application/vnd.pypi.simple.v1+json"
                    entry = {"filename": "demo_pkg-1.0.tar.gz", "url": "../../files/demo_pkg-1.0.tar.gz"}
                    body = json.dumps({"files": [{**entry, "hashes": {"sha256": digest}}]}).encode()
                elif self.path == "/files/demo_pkg-1.0.tar.gz":
                    kind, body = "application/gzip", data
                else:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/simple"

    def __enter__(self) -> Index:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.server.server_close()


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


@pytest.mark.parametrize("as_html", [False, True])
def test_makes_a_clean_tagged_checkout(tmp_path: Path, as_html: bool) -> None:
    with Index(GOOD, as_html=as_html) as index:
        answer = fetch(index, tmp_path, "demo.pkg==1.0", "out")
    assert answer.returncode == 0, answer.stderr
    assert git(tmp_path / "out", "ls-files").split() == [".gitignore", "a.so", "link", "setup.py"]
    assert git(tmp_path / "out", "status", "--porcelain") == ""
    assert git(tmp_path / "out", "describe", "--tags") == "v1.0"
    assert names(tmp_path) == ["cache", "out"]


def test_the_commit_is_the_same_everywhere_and_the_second_time_needs_no_index(tmp_path: Path) -> None:
    with Index(GOOD) as index:
        assert fetch(index, tmp_path, "demo-pkg==1.0", "one").returncode == 0
        asked = len(index.requests)
        assert fetch(index, tmp_path, "demo-pkg==1.0", "two").returncode == 0
        again = fetch(index, tmp_path, "demo-pkg==1.0", "one")
        assert len(index.requests) == asked
    assert again.returncode == 0 and "already" in again.stderr
    assert git(tmp_path / "one", "rev-parse", "HEAD") == git(tmp_path / "two", "rev-parse", "HEAD")


def test_the_users_own_commits_are_left_alone(tmp_path: Path) -> None:
    with Index(GOOD) as index:
        assert fetch(index, tmp_path, "demo-pkg==1.0", "out").returncode == 0
        (tmp_path / "out" / "mine").write_text("edited\n")
        git(tmp_path / "out", "add", "mine")
        git(tmp_path / "out", "-c", "user.name=me", "-c", "user.email=me@localhost", "commit", "-qm", "mine")
        assert fetch(index, tmp_path, "demo-pkg==1.0", "out").returncode == 0
    assert (tmp_path / "out" / "mine").read_text() == "edited\n"


def test_a_folder_with_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("x")
    with Index(GOOD) as index:
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
    with Index(data, digest) as index:
        answer = fetch(index, tmp_path, "demo-pkg==1.0", "out", *arguments)
    assert answer.returncode == 1 and message in answer.stderr and "Traceback" not in answer.stderr
    assert names(tmp_path) == ["cache"]


@pytest.mark.parametrize("requirement", ["demo-pkg", "demo-pkg>=1", "../x==1", "demo-pkg==../1"])
def test_a_bad_requirement_is_a_usage_error(tmp_path: Path, requirement: str) -> None:
    with Index(GOOD) as index:
        answer = fetch(index, tmp_path, requirement, "out")
        assert index.requests == []
    assert answer.returncode == 2 and "NAME==VERSION" in answer.stderr
