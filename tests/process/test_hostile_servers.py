"""A package index and a hub that are hostile, endless or slow: one sentence, and bounded in bytes and time."""

from __future__ import annotations

import http.server
import io
import itertools
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from local import Quiet, serving

from envgen.engine import web
from envgen.errors import EnvgenError, LockError
from envgen.lock.model import Pinned
from envgen.lock.servers import commit_of
from envgen.patches import wheel
from envgen.profile.service import ModelRef


def archive(text: bytes = b"a\nb\nc\n", how: int = zipfile.ZIP_STORED) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", how) as made:
        made.writestr("foo/a.py", text)
        made.writestr("foo-1.0.dist-info/RECORD", "")
    return target.getvalue()


def damaged(at: tuple[int, int], value: int) -> bytes:
    """With a field of the central and of the local headers changed."""
    data = bytearray(archive())
    for mark, offset in zip((b"PK\1\2", b"PK\3\4"), at, strict=True):
        for place in [i for i in range(len(data)) if data.startswith(mark, i)]:
            data[place + offset] = value
    return bytes(data)


WHEELS = {
    "good": archive(),
    "other": archive(b"of another index\n"),
    "bomb": archive(bytes(wheel.LARGEST + 1), zipfile.ZIP_DEFLATED),
    "encrypted": damaged((8, 6), 1),
    "compression": damaged((10, 8), 99),
    "garbage": b"Q" * 1000,
}
LINKS = {"address": "http://[/foo-1.0-py3-none-any.whl", "file": "file:///etc/foo-1.0-py3-none-any.whl"}


class Index(Quiet):
    """The first word of the path is what is wrong."""

    def do_GET(self) -> None:
        mode = self.path.split("/")[1]
        if not self.path.endswith(".whl"):
            self.page(mode)
            return
        first, last = map(int, (self.headers["Range"] or "bytes=0-0")[6:].split("-"))
        data = WHEELS.get(mode, WHEELS["good"])
        part, total = data[first : last + 1], {"huge": "9" * 20, "star": "*"}.get(mode, str(len(data)))
        if mode == "no-range":
            self.reply(part, 206)
        elif mode == "no-parts":
            self.reply(data)
        elif mode == "too-much":
            self.reply(part + bytes(1000), 206, Content_Range=f"bytes {first}-{last}/{total}")
        elif mode in ("endless", "drips") and last:
            self.endless(
                b"Z" * 65536 if mode == "endless" else b"Z", {"Content-Range": f"bytes {first}-{last}/{total}"}
            )
        else:
            self.reply(part, 206, Content_Range=f"bytes {first}-{last}/{total}")

    def page(self, mode: str) -> None:
        if mode == "endless-page":
            self.endless(b" " * 65536, {})
        elif mode in ("page-drips", "hub-drips"):
            self.endless(b" ", {})
        elif mode == "headers-drip":
            for _ in range(2000):
                self.wfile.write(b"H")
                time.sleep(0.05)
        elif mode == "tags":
            self.reply(b"<a " * 2_000_000)
        else:
            link = LINKS.get(mode, f"/{mode}/foo-1.0-py3-none-any.whl")
            self.reply(f'<a class="x" href="{link}">x</a>'.encode(), kind="text/html")

    def endless(self, piece: bytes, headers: dict[str, str]) -> None:
        self.send_response(206 if headers else 200)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        for _ in itertools.repeat(None):
            self.wfile.write(piece)
            if len(piece) == 1:
                time.sleep(0.05)

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:
            self.close_connection = True


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Index)
    server.daemon_threads = True
    with serving(server) as address:
        yield address


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(web, "SECONDS", 1.5)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def read(address: str, pins: tuple[Pinned, ...] = ()) -> bytes:
    wheel._address.cache_clear()
    return wheel.released("foo", "1.0", (address,), None, pins).read(["foo/a.py"])["foo/a.py"].data


@pytest.mark.parametrize(
    "mode",
    [*sorted(WHEELS.keys() - {"good", "other"}), *LINKS, "no-range", "no-parts", "too-much", "huge", "star", "endless",
     "drips", "endless-page", "page-drips", "headers-drip", "tags"],
)  # fmt: skip
def test_an_index_that_is_hostile(url: str, mode: str) -> None:
    with pytest.raises(EnvgenError, match=r"foo 1\.0"):
        read(f"{url}/{mode}")


def test_a_hub_that_sends_a_byte_now_and_then(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", f"{url}/hub-drips")
    with pytest.raises(LockError, match="no whole answer within a minute"):
        commit_of(ModelRef("a/b"))


def edits() -> list[Callable[[Path], object]]:
    return [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"[]"),
        lambda path: path.write_bytes(path.read_bytes()[:-1] + b"!"),
        lambda path: (path.unlink(), path.mkdir()),
    ]


@pytest.mark.parametrize("edit", edits())
def test_a_damaged_cache_is_fetched_again(url: str, tmp_path: Path, edit: Callable[[Path], object]) -> None:
    assert read(f"{url}/good") == b"a\nb\nc\n"
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(kept) == 2
    for path in kept:
        edit(path)
        assert read(f"{url}/good") == b"a\nb\nc\n"


def test_another_index_or_hash_is_another_wheel(url: str, tmp_path: Path) -> None:
    assert read(f"{url}/good") == b"a\nb\nc\n"
    assert read(f"{url}/other") == b"of another index\n"
    pins = (Pinned("foo", "1.0", ("a" * 64,)),)
    assert read(f"{url}/good", pins) == b"a\nb\nc\n"
    assert len(list((tmp_path / "envgen/wheels").iterdir())) == 3
    with pytest.raises(EnvgenError):
        read(f"{url}/garbage")
