"""Two folders and the two programs that make the second like the first, over a connection of this machine."""

from __future__ import annotations

import os
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from envgen.inside import node


@pytest.fixture
def program() -> ModuleType:
    return node


class Two:
    """The folders ``one`` and ``two``."""

    def __init__(self, program: ModuleType, folder: Path) -> None:
        self.program, self.one, self.two = program, folder / "one", folder / "two"
        self.one.mkdir()
        self.two.mkdir()

    def copy(self, kind: str = "tree", model: dict[str, str] | None = None, **changes: Any) -> dict[str, Any]:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        common = {
            "kind": kind,
            "model": model or {},
            "token": "x" * 32,
            "seconds": 60,
            "address": "127.0.0.1",
            "port": port,
        }
        receiving = {
            "ask": "receive", "folder": str(self.two), "source": "127.0.0.1", "owner": [os.getuid(), os.getgid()],
            "dry_run": False, "force": False,
        }  # fmt: skip
        with ThreadPoolExecutor(1) as pool:
            sent = pool.submit(self.program.answer, {**common, "ask": "send", "folder": str(self.one)})
            found: dict[str, Any] = self.program.answer({**common, **receiving, **changes})
            sent.result()
        return found


@pytest.fixture
def two(program: ModuleType, tmp_path: Path) -> Two:
    return Two(program, tmp_path)


def write(path: Path, text: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


def test_what_is_missing_is_sent_with_its_times_and_the_rest_left_alone(two: Two) -> None:
    write(two.one / "deep/er/large", os.urandom(9 << 20))
    write(two.one / "tool", "#!/bin/sh\n")
    (two.one / "tool").chmod(0o755)
    (two.one / "link").symlink_to("deep/er/large")
    write(two.two / "own", "stays")
    os.utime(two.one / "tool", ns=(1_700_000_000_123_456_789, 1_700_000_000_123_456_789))
    assert two.copy(dry_run=True)["files"] == 3
    assert not (two.two / "tool").exists()
    assert two.copy() == {"files": 3, "removed": 0, "bytes": (9 << 20) + 10, "of": 3}
    assert (two.two / "deep/er/large").read_bytes() == (two.one / "deep/er/large").read_bytes()
    assert (two.two / "tool").stat().st_mtime_ns == 1_700_000_000_123_456_789
    assert os.access(two.two / "tool", os.X_OK)
    assert (two.two / "link").readlink() == Path("deep/er/large")
    assert (two.two / "own").read_text() == "stays"
    before = (two.two / "tool").stat().st_ino
    assert two.copy()["files"] == 0
    assert (two.two / "tool").stat().st_ino == before


def test_a_mirror_has_nothing_that_the_other_end_lacks(two: Two) -> None:
    large = bytearray(9 << 20)
    write(two.one / "lib/large.so", bytes(large))
    large[5 << 20] = 1  # between the samples
    write(two.two / "lib/large.so", bytes(large))
    (two.one / "lib64").symlink_to("lib")
    write(two.two / "lib/old.py", "an older release's")
    assert two.copy("mirror") == {"files": 2, "removed": 1, "bytes": 9 << 20, "of": 2}
    assert sorted(path.name for path in two.two.rglob("*")) == ["large.so", "lib", "lib64"]
    assert (two.two / "lib/large.so").read_bytes() == (two.one / "lib/large.so").read_bytes()


def test_what_a_run_that_was_cut_off_left_of_a_file_is_replaced(two: Two) -> None:
    write(two.one / "weights", b"a" * 1000)
    write(two.two / "weights", b"old")
    write(two.two / "weights.envgen-part", b"b" * 2000)
    assert two.copy()["files"] == 1
    assert (two.two / "weights").read_bytes() == b"a" * 1000
    assert not (two.two / "weights.envgen-part").exists()


def test_a_disk_that_is_too_small_gets_nothing(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    write(two.one / "weights", b"a" * 1000)
    monkeypatch.setattr(two.program, "RESERVE", 1 << 60)
    assert two.copy()["free"] == 0
    assert list(two.two.iterdir()) == []


def test_one_commit_of_a_model_and_no_other(two: Two) -> None:
    top = two.one / "hub/models--acme--tiny"
    write(top / "blobs/aa", "config")
    write(top / "blobs/of-another-commit", "x")
    write(top / "refs/main", "abc")
    (top / "snapshots/abc").mkdir(parents=True)
    (top / "snapshots/abc/config.json").symlink_to("../../blobs/aa")
    assert two.copy("model", {"repo": "acme/tiny", "revision": "main"})["files"] == 3
    assert (two.two / "hub/models--acme--tiny/snapshots/abc/config.json").read_text() == "config"
    assert not (two.two / "hub/models--acme--tiny/blobs/of-another-commit").exists()


def git(folder: Path, *words: str) -> None:
    own = ["-c", "user.name=x", "-c", "user.email=x@x", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *own, "-C", str(folder), *words], check=True, capture_output=True)


def test_a_checkout_becomes_the_same_and_what_was_changed_there_is_not_lost(two: Two) -> None:
    write(two.one / "a.py", "a")
    write(two.one / "gone.py", "x")
    write(two.one / ".gitignore", "*.so\nscratch\nbuild\n")
    git(two.one, "init")
    git(two.one, "add", ".")
    git(two.one, "commit", "-m", "x")
    for name in ("new.py", "_C.so", "scratch", "build/x.so"):
        write(two.one / name, name)
    assert two.copy("checkout")["removed"] == 0
    assert (two.two / "new.py").exists() and (two.two / "_C.so").exists()  # not yet added; compiled
    assert not (two.two / "scratch").exists() and not (two.two / "build").exists()
    git(two.two, "rev-parse", "--verify", "HEAD")
    assert two.copy("checkout")["files"] == 0

    (two.one / "gone.py").unlink()
    write(two.one / "a.py", "b")
    assert two.copy("checkout")["removed"] == 1
    assert (two.two / "a.py").read_text() == "b" and not (two.two / "gone.py").exists()

    write(two.two / "a.py", "edited there")
    write(two.one / "a.py", "c")
    found = two.copy("checkout")
    assert (found["changed"], found["changes"]) == (["a.py"], 1)
    assert (two.two / "a.py").read_text() == "edited there"
    two.copy("checkout", force=True)
    assert (two.two / "a.py").read_text() == "c"


def test_a_path_that_leads_out_is_refused(two: Two) -> None:
    for path in ("../out", "/etc/out", "a/../../out"):
        with pytest.raises(EOFError, match="leads out"):
            two.program.Receiver({"folder": str(two.two), "owner": [0, 0]}, {path: [1, "x", 0]})
