"""The package index client against a real HTTP server on loopback: its pages, and what goes wrong."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from envgen.errors import EnvgenError
from envgen.lock.index import PAGE, PackageIndex, pip_settings
from envgen.patches.dry_run import SdistTree


def archive() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, kind in (("alpha-1.5/alpha/a.py", tarfile.REGTYPE), ("alpha-1.5/alpha/link.py", tarfile.SYMTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd" if kind == tarfile.SYMTYPE else ""
            member.size = 6 if kind == tarfile.REGTYPE else 0
            tar.addfile(member, io.BytesIO(b"x = 1\n"))
    return out.getvalue()


BYTES = archive()
DIGEST = hashlib.sha256(BYTES).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    pages: dict[str, tuple[int, str, bytes]]
    asked: list[tuple[str, str]]

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers.get("Authorization") or ""))
        code, kind, body = self.pages.get(self.path, (404, "text/plain", b"no"))
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, type[Handler]]]:
    class Own(Handler):
        pass

    Own.pages = {"/files/alpha-1.5.tar.gz": (200, "application/gzip", BYTES)}
    Own.asked = []
    listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Own)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{listening.server_port}", Own
    listening.shutdown()
    listening.server_close()


def index(address: str, home: Path, **more: str) -> PackageIndex:
    environ = {"PIP_INDEX_URL": f"http://{address}/simple", "HOME": str(home), **more}
    return PackageIndex(environ, seconds=10)


def page(*files: tuple[str, str, bool]) -> tuple[int, str, bytes]:
    listed = [
        f'<a {"data-yanked" * yanked} href="../../files/{name}#sha256={digest}">{name}</a><a data-yanked href="../b">'
        for name, digest, yanked in files
    ]
    return 200, "text/html", "\n".join(["<!DOCTYPE html>", *listed]).encode()


def test_fetched_once_and_read_without_unpacking(server: tuple[str, type[Handler]], tmp_path: Path) -> None:
    address, own = server
    name = "alpha-1.5.tar.gz"
    own.pages["/simple/alpha/"] = page((name, DIGEST, False))
    found = index(address, tmp_path).fetch("Alpha", "1.5")
    assert found == tmp_path / ".cache/envgen/sdists/alpha-1.5.tar.gz"
    asked = len(own.asked)
    assert index(address, tmp_path).fetch("alpha", "1.5") == found
    assert len(own.asked) == asked
    tree = SdistTree(found, "alpha 1.5", "1.5")
    assert tree.read({"alpha/a.py", "alpha/gone.py"})["alpha/a.py"].data == b"x = 1\n"
    with pytest.raises(EnvgenError, match=r"alpha/link.py is not a plain file"):
        tree.read({"alpha/link.py"})


def test_a_damaged_cache_is_fetched_again(server: tuple[str, type[Handler]], tmp_path: Path) -> None:
    address, own = server
    own.pages["/simple/alpha/"] = page(("alpha-1.5.tar.gz", DIGEST, False))
    found = index(address, tmp_path).fetch("alpha", "1.5")
    found.write_bytes(b"broken")
    assert index(address, tmp_path).fetch("alpha", "1.5").read_bytes() == BYTES


def test_withdrawn_releases_and_wheels_are_not_listed(server: tuple[str, type[Handler]], tmp_path: Path) -> None:
    address, own = server
    own.pages["/simple/alpha/"] = page(
        ("alpha-1.5.tar.gz", DIGEST, False),
        ("alpha-1.6.tar.gz", DIGEST, True),
        ("alpha-1.7-py3-none-any.whl", DIGEST, False),
        ("alpha_extra-9.tar.gz", DIGEST, False),
    )
    found = index(address, tmp_path)
    assert list(map(str, found.versions("alpha"))) == ["1.5", "1.7"]
    with pytest.raises(EnvgenError, match=r"no source distribution \(\.tar\.gz\) of alpha 1\.7\n.*--ref v1\.7"):
        found.fetch("alpha", "1.7")


@pytest.mark.parametrize(
    ("digest", "reason"), [("0" * 64, "arrived with sha256"), ("", "has no sha256"), ("zz", "has no sha256")]
)
def test_wrong_hashes_leave_nothing(
    server: tuple[str, type[Handler]], tmp_path: Path, digest: str, reason: str
) -> None:
    address, own = server
    own.pages["/simple/alpha/"] = page(("alpha-1.5.tar.gz", digest, False))
    with pytest.raises(EnvgenError, match=reason):
        index(address, tmp_path).fetch("alpha", "1.5")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_what_is_missing_is_named_without_the_password(server: tuple[str, type[Handler]], tmp_path: Path) -> None:
    address, own = server
    with pytest.raises(EnvgenError) as caught:
        index(f"me:hunter2@{address}", tmp_path).fetch("alpha", "1.5")
    assert "answered 404" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert own.asked[0][1].startswith("Basic ")


def test_the_second_index_is_asked_too(server: tuple[str, type[Handler]], tmp_path: Path) -> None:
    address, own = server
    own.pages["/other/alpha/"] = page(("alpha-1.5.tar.gz", DIGEST, False))
    found = index(address, tmp_path, PIP_EXTRA_INDEX_URL=f"http://{address}/other")
    assert found.fetch("alpha", "1.5").read_bytes() == BYTES


def test_an_index_that_nobody_answers_for(tmp_path: Path) -> None:
    with pytest.raises(EnvgenError, match="cannot be reached"):
        index("127.0.0.1:9", tmp_path).versions("alpha")


def test_pip_settings_come_from_files_then_variables(tmp_path: Path) -> None:
    (tmp_path / "own.conf").write_text("[global]\nindex_url = http://a/simple\ncert = /x.pem\n")
    environ = {"HOME": str(tmp_path), "PIP_CONFIG_FILE": str(tmp_path / "own.conf")}
    assert pip_settings(environ)["index-url"] == "http://a/simple"
    assert pip_settings({**environ, "PIP_INDEX_URL": "http://b/simple"})["index-url"] == "http://b/simple"
    assert pip_settings(environ)["cert"] == "/x.pem"


class Endless(http.server.BaseHTTPRequestHandler):
    """/simple/endless/: HTML without an end; /simple/slow/: a byte now and then; /simple/bomb/: packed."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        if "bomb" in self.path:
            packed = gzip.compress(b"<a>" * (PAGE // 2))
            self.send_header("Content-Encoding", "gzip")
            self.send_header("Content-Length", str(len(packed)))
        self.end_headers()
        try:
            if "bomb" in self.path:
                self.wfile.write(packed)
            while "bomb" not in self.path:
                self.wfile.write(b"<a>" if "slow" in self.path else b"<a>" * 100_000)
                self.wfile.flush()
                time.sleep(0.2 if "slow" in self.path else 0)
        except OSError:
            pass  # who asked has gone

    def log_message(self, *_args: object) -> None:
        pass


@pytest.mark.parametrize(
    ("name", "why"), [("endless", "larger than 64 MiB"), ("bomb", "larger than 64 MiB"), ("slow", "longer than 2 s")]
)
def test_a_page_has_an_end(tmp_path: Path, name: str, why: str) -> None:
    listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endless)
    listening.daemon_threads = True
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    environ = {"PIP_INDEX_URL": f"http://127.0.0.1:{listening.server_port}/simple", "HOME": str(tmp_path)}
    try:
        with pytest.raises(EnvgenError, match=why):
            PackageIndex(environ, seconds=2 if name == "slow" else 60).versions(name)
    finally:
        listening.shutdown()
        listening.server_close()
