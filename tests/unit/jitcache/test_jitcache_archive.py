"""cache save and load: the same bytes and times again, nothing half placed, and nothing that an archive may try."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jitcache_asking import hold
from jitcache_layouts import RELEASES, Shelf, put, release, snapshot

from envgen.inside.jit.archive import HEAD, nanoseconds, why_not
from envgen.inside.jit.main import answer
from envgen.inside.jit.tree import Fault

ODD = 1_700_000_000_123_456_789


def save(root: Path, target: Path, **more: Any) -> dict[str, Any]:
    target.touch()  # the host makes it, and mounts it
    return answer({"operation": "save", "root": str(root), "target": str(target), "key": "k", **more})


def load(root: Path, source: Path, **more: Any) -> dict[str, Any]:
    return answer({"operation": "load", "root": str(root), "source": str(source), "key": "k", **more})


def refused(root: Path, source: Path, words: str, **more: Any) -> None:
    """Nothing at all may be left of it, not even a folder."""
    before = snapshot(root)
    document = load(root, source, **more)
    assert not document["ok"], document
    assert words in document["message"]
    assert snapshot(root) == before


def times(root: Path) -> dict[str, int]:
    return {path: (root / path).stat().st_mtime_ns for path, (kind, _) in snapshot(root).items() if kind == "file"}


def archive(path: Path, *members: tuple[str, Any], head: str = '{"format": 2, "key": "k", "root": "/r"}') -> Path:
    """An archive of one's own making. A member is a name and bytes, or a TarInfo's fields."""
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT, compresslevel=1) as tar:
        for name, content in ((HEAD, head.encode()), *members):
            info = tarfile.TarInfo(name)
            if isinstance(content, dict):
                for key, value in content.items():
                    setattr(info, key, value)
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return path


@pytest.mark.parametrize("version", RELEASES)
def test_everything_comes_back_to_the_nanosecond(tmp_path: Path, version: str) -> None:
    here, there, file = tmp_path / "here", tmp_path / "there", tmp_path / "file"
    shelf = release(here, version)
    put(here / f".envgen/baseline/{version}/121a/page.json", "{}")
    for number, path in enumerate(sorted(shelf.base.rglob("*"))):
        if path.is_file():
            os.utime(path, ns=(ODD, ODD + number))
    document = save(here, file)
    assert document["ok"], document
    there.mkdir()
    assert load(there, file)["result"]["modules"] == document["result"]["modules"]
    assert snapshot(there) == snapshot(here)
    assert times(there) == times(here)


def test_modules_of_the_same_version_are_replaced_only_when_asked(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    release(here, "0.7.2.post1")
    put(here / ".envgen/baseline/0.7.2.post1/121a/page.json", "{}")
    save(here, tmp_path / "file")
    put(there / "0.7.2.post1/121a/cached_ops/page/page.so", "mine")
    put(there / "cubins/mine", "mine")
    put(there / ".envgen/baseline/0.7.2.post1/121a/gone.json", "mine")
    others = [put(there / "0.5.3/121a/cached_ops/page/page.so", "other"),
              put(there / ".envgen/baseline/0.5.3/121a/page.json", "other")]  # fmt: skip
    refused(
        there, tmp_path / "file", "1 modules of the same version are there already, 0.7.2.post1/121a/cached_ops/page"
    )
    done = load(there, tmp_path / "file", replace=True)["result"]
    assert done["replaced"] == ["0.7.2.post1/121a/cached_ops/page"]
    assert [path.read_text() for path in others] == ["other", "other"]
    assert (there / "cubins/mine").read_text() == "mine"
    for part in ("0.7.2.post1", ".envgen/baseline/0.7.2.post1"):
        assert {p: v for p, v in snapshot(there / part).items() if not p.endswith(".lock")} == {
            p: v for p, v in snapshot(here / part).items() if not p.endswith(".lock")
        }
    assert not list(there.glob(".envgen-*-*"))


LEARNED, LIVE = ".envgen/learned/nvcc-13.0.88", ".envgen/gate"


def test_what_compilers_took_is_carried_and_added_to_what_was_learned_there(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    release(here, "0.5.3")
    put(here / LEARNED / "page/page.cuda.o", "300 12.3\n")
    put(there / LEARNED / "page/page.cuda.o", "200 10.0\n")
    kept = [put(there / LEARNED / "page/other.cuda.o", "400 1.0\n"), put(there / LEARNED / "rope/rope.cuda.o", "5 1\n"),
            put(there / ".envgen/learned/nvcc-12.9/page/page.cuda.o", "6 1\n")]  # fmt: skip
    before = [path.read_text() for path in kept]
    assert save(here, tmp_path / "file")["ok"]
    assert load(there, tmp_path / "file")["ok"]
    assert (there / LEARNED / "page/page.cuda.o").read_text() == "300 12.3\n"
    assert [path.read_text() for path in kept] == before


def test_gates_that_run_stay_where_they_are(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for root in (here, there):
        put(root / LIVE / "keeper.lock", root.name)
        os.mkfifo(root / LIVE / f"{root.name}.pipe")
    release(here, "0.5.3")
    before = (there / LIVE / "keeper.lock").stat().st_ino
    document = save(here, tmp_path / "file")
    assert document["result"]["problems"] == []
    with tarfile.open(tmp_path / "file") as tar:
        assert not [name for name in tar.getnames() if name.startswith(LIVE)]
    assert load(there, tmp_path / "file")["ok"]
    # An archive that an earlier envgen wrote has the lock in it.
    assert load(there, archive(tmp_path / "older", (f"{LIVE}/keeper.lock", b"here"), (f"{LIVE}/dead", b"{}")))["ok"]
    assert sorted(path.name for path in (there / LIVE).iterdir()) == ["keeper.lock", "there.pipe"]
    assert (there / LIVE / "keeper.lock").stat().st_ino == before


def test_another_environment_is_refused(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    release(here, "0.5.3")
    there.mkdir()
    save(here, tmp_path / "file")
    refused(there, tmp_path / "file", "the archive is of another environment; --force", key="other")
    assert load(there, tmp_path / "file", key="other", force=True)["ok"]


NAMES = [
    "../x", "/etc/passwd", "0.5.3/../../x", "0.5.3/121a/cached_ops/../x", ".bashrc", "./0.5.3/cached_ops/a/b",
    "0.5.3/121a/cached_ops/.envgen-work-1/x", ".envgen-work-1/x", "0.5.3//cached_ops/page/x",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_names_that_lead_elsewhere(tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    good = ("0.5.3/121a/cached_ops/page/page.so", b"x")
    refused(root, archive(tmp_path / "file", good, (name, b"x")), "the archive is not taken")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "root"]


@pytest.mark.parametrize(
    "kind",
    [
        {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"},
        {"type": tarfile.LNKTYPE, "linkname": "0.5.3/121a/cached_ops/page/page.so"},
        {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3},
        {"type": tarfile.BLKTYPE, "devmajor": 8},
        {"type": tarfile.FIFOTYPE},
        {"type": b"Z"},
    ],
)
def test_links_and_devices(tmp_path: Path, kind: dict[str, Any]) -> None:
    root = tmp_path / "root"
    root.mkdir()
    members = (("0.5.3/121a/cached_ops/page/page.so", b"x"), ("0.5.3/121a/cached_ops/page/odd", kind))
    refused(root, archive(tmp_path / "file", *members), "plain file")


def test_a_link_and_then_a_file_through_it(tmp_path: Path) -> None:
    root, victim = tmp_path / "root", tmp_path / "victim"
    root.mkdir()
    victim.mkdir()
    link = {"type": tarfile.SYMTYPE, "linkname": str(victim)}
    members = (("0.5.3/121a/cached_ops/page", link), ("0.5.3/121a/cached_ops/page/page.so", b"x"))
    refused(root, archive(tmp_path / "file", *members), "plain file")
    assert not list(victim.iterdir())


def test_links_that_lie_in_the_cache_are_not_followed(tmp_path: Path) -> None:
    root, victim = tmp_path / "root", tmp_path / "victim"
    victim.mkdir()
    put(root / "x")
    (root / "0.5.3").symlink_to(victim)
    document = load(root, archive(tmp_path / "file", ("0.5.3/121a/cached_ops/page/page.so", b"x")))
    assert not document["ok"]
    assert not list(victim.iterdir())


@pytest.mark.parametrize("mode", [0o4755, 0o2755, 0o1777, 0o666])
def test_modes_give_nobody_more(tmp_path: Path, mode: int) -> None:
    name = "0.5.3/121a/cached_ops/page/page.so"
    file = archive(tmp_path / "file", (name, {"mode": mode}))
    assert load(tmp_path / "root", file)["ok"]
    assert (tmp_path / "root" / name).stat().st_mode & 0o7777 == 0o644 | (mode & 0o111)


def test_twice_the_same_and_a_file_as_a_folder(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    name = "0.5.3/121a/cached_ops/page/a"
    refused(root, archive(tmp_path / "one", (name, b"x"), (name, b"y")), "twice")
    refused(root, archive(tmp_path / "two", (name, b"x"), (name + "/b", b"y")), "a file in one place")


def test_more_than_the_disk_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    root.mkdir()
    file = archive(tmp_path / "file", ("0.5.3/121a/cached_ops/page/a", b"x" * 5000))
    space = os.statvfs(root)
    few = os.statvfs_result((space.f_bsize, 1000, 10, 4, 4, *tuple(space)[5:]))
    monkeypatch.setattr(os, "fstatvfs", lambda fd: few)
    refused(root, file, "more than the disk has room for")


@pytest.mark.parametrize("head", ["{", "[]", '{"format": 1, "key": "k"}', '{"format": 2, "key": "other"}'])
def test_invalid_heads(tmp_path: Path, head: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    refused(root, archive(tmp_path / "file", head=head), "archive")


def test_a_head_nested_too_deeply_is_a_bad_archive(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    refused(root, archive(tmp_path / "file", head="[" * 99_990), "damaged: its first member is not JSON")


MODULE = "0.5.3/121a/cached_ops/page/"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (MODULE + "d/" * 1500 + "x", "nested more than 40"),
        (MODULE + "d/" * 37 + "x", "nested more than 40"),
        (MODULE + "n" * 300, "longer than any"),
        (MODULE + "ü" * 128, "longer than any"),  # 256 bytes
        (MODULE + "/".join(["n" * 200] * 6), "longer than any"),
    ],
)
def test_names_without_a_bound(tmp_path: Path, name: str, words: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    refused(root, archive(tmp_path / "file", (name, b"x")), words)


def test_the_deepest_that_is_taken(tmp_path: Path) -> None:
    name = MODULE + "d/" * 35 + "x"
    assert load(tmp_path / "root", archive(tmp_path / "file", (name, b"x")))["ok"]
    assert (tmp_path / "root" / name).read_bytes() == b"x"


def raw(path: Path, *blocks: bytes) -> Path:
    """An archive of raw blocks, after a good head."""
    head = b'{"format": 2, "key": "k", "root": "/r"}'
    info = tarfile.TarInfo(HEAD)
    info.size = len(head)
    data = info.tobuf(tarfile.USTAR_FORMAT) + head.ljust(512, b"\0") + b"".join(blocks) + bytes(1024)
    path.write_bytes(gzip.compress(data, 1))
    return path


def header(kind: bytes, size: int, name: str = MODULE + "x") -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


def pax(*records: tuple[str, str], kind: bytes = tarfile.XHDTYPE) -> bytes:
    lines = b""
    for key, value in records:
        body = f" {key}={value}\n".encode()
        size = len(body) + 1
        while size != len(body) + len(str(size)):
            size += 1
        lines += str(size).encode() + body
    return header(kind, len(lines)) + lines.ljust(-(-len(lines) // 512) * 512, b"\0")


@pytest.mark.parametrize(
    ("blocks", "words"),
    [
        ([header(tarfile.XHDTYPE, 3 << 30)], "a header of more than"),
        ([header(tarfile.XHDTYPE, (16 << 10) + 1)], "a header of more than"),
        ([header(tarfile.GNUTYPE_LONGNAME, 3 << 30)], "a header of more than"),
        ([header(tarfile.GNUTYPE_LONGLINK, 3 << 30)], "a header of more than"),
        ([header(tarfile.XGLTYPE, 3 << 30)], "a header of more than"),
        ([pax(("comment", "x"), kind=tarfile.XGLTYPE), header(b"0", 0)], "plain file"),
        ([header(tarfile.GNUTYPE_SPARSE, 100)], "plain file"),
        ([pax(("path", MODULE + "a"))] * 20, "a header of more than"),
        ([pax(("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0")), header(b"0", 512), b"9" * 512], "archive"),
        (
            [
                pax(("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0")),
                header(b"0", 1 << 20),
                b"99999\n" + b"1\n" * (1 << 15),
            ],
            "a header of more than",
        ),
        ([pax(("size", "9" * 19)), header(b"0", 0)], "impossible size"),
        ([pax(("size", "-1")), header(b"0", 0)], "archive"),
        ([pax(("mtime", "1e300")), header(b"0", 0)], "impossible time"),
        ([header(tarfile.XHDTYPE, 10) + b"99 path=x\n".ljust(512, b"\0")], "archive"),
        ([header(tarfile.XHDTYPE, 10) + b"0000000000".ljust(512, b"\0")], "archive"),
        ([bytes([1]) * 512], "archive"),
        ([bytes(1024), header(b"0", 0)], "can't be read"),
        ([bytes(1 << 20)], "can't be read"),
        ([header(b"0", 1 << 33)], "room for"),
        ([header(b"0", 4096) + bytes(512)], "in the middle of a file"),
    ],
)
def test_headers_that_envgen_never_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: list[bytes], words: str
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    little = os.statvfs_result((4096, 4096, 100, 100, 100, 100, 100, 100, 0, 255))
    monkeypatch.setattr(os, "fstatvfs", lambda fd: little)
    refused(root, raw(tmp_path / "file", *blocks), words)


def test_a_packed_header_of_a_gigabyte_takes_no_memory(tmp_path: Path) -> None:
    """1.4 MB of gzip took 2.9 GB of memory: the header was read whole before it was looked at."""
    root = tmp_path / "root"
    root.mkdir()
    plain = raw(tmp_path / "plain", header(tarfile.XHDTYPE, 1 << 30))
    with gzip.open(tmp_path / "file", "wb", compresslevel=1) as out:
        out.write(gzip.decompress(plain.read_bytes())[:-1024])
        for _ in range(64):
            out.write(bytes(1 << 20))
    tracemalloc.start()
    try:
        refused(root, tmp_path / "file", "a header of more than")
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()


def test_what_is_packed_otherwise_is_not_unpacked(tmp_path: Path) -> None:
    """The dictionary of an xz file may ask for gigabytes; envgen writes plain files and gzip."""
    import lzma

    root = tmp_path / "root"
    root.mkdir()
    plain = archive(tmp_path / "plain", (MODULE + "x", b"x"))
    (tmp_path / "file").write_bytes(lzma.compress(plain.read_bytes()))
    refused(root, tmp_path / "file", "archive")


@settings(max_examples=60)
@given(cut=st.booleans(), place=st.integers(0, 10**6), bits=st.integers(1, 255))
def test_cut_off_or_damaged_anywhere(
    tmp_path_factory: pytest.TempPathFactory, cut: bool, place: int, bits: int
) -> None:
    """Whatever happens to the bytes: taken whole and as it was (the damage was in gzip's header), or not at all."""
    base = tmp_path_factory.mktemp("damaged")
    root = base / "root"
    root.mkdir()
    shelf = Shelf(base / "from", "0.7.2.post1")
    shelf.module("page")
    save(base / "from", base / "file")
    raw = bytearray((base / "file").read_bytes())
    if cut:
        raw = raw[: place % len(raw)]
    else:
        raw[place % len(raw)] ^= bits
    (base / "file").write_bytes(bytes(raw))
    document = load(root, base / "file")
    found = {path.name: path.read_bytes() for path in root.rglob("*.so")}
    assert found == ({"page.so": (shelf.ops / "page/page.so").read_bytes()} if document["ok"] else {})
    assert not list(root.glob(".envgen-*-*"))


@pytest.mark.parametrize("text", ["", "-1", "1e9", "1.5.5", "1,5", "999999999999", "1.1234567890", "nan", "٣"])
def test_times_that_no_file_has(text: str) -> None:
    with pytest.raises(Fault, match="impossible time"):
        nanoseconds(text)


@given(st.integers(0, 10**11 * 10**9 - 1))
def test_times_come_back(when: int) -> None:
    assert nanoseconds(f"{when // 10**9}.{when % 10**9:09}") == when


@given(st.text("./ab\0-_", max_size=40))
def test_no_name_leads_out(name: str) -> None:
    if not why_not(name):
        assert os.path.normpath("/root/" + name) == "/root/" + name


def test_a_held_lock_refuses_both(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    shelf = release(here, "0.7.2.post1")
    assert save(here, tmp_path / "file")["ok"]
    for lock in ("tmp/page.lock", "kda_ptx/deep/module.cubin.lock"):  # 0.7 has locks inside of modules, too
        fd = hold(shelf.ops / lock)
        try:
            held = save(here, tmp_path / "again")["data"]["held"]
            assert [one["lock"].endswith(f"cached_ops/{lock}") for one in held] == [True]
            assert held[0]["holders"][0]["pid"] == os.getpid()
            assert not (tmp_path / "again").stat().st_size
        finally:
            os.close(fd)
    (shelf.ops / "kda_ptx/deep/module.cubin.lock").unlink()
    other = Shelf(there, "0.7.2.post1")
    other.module("rope")
    put(other.ops / "tmp/rope.lock")
    fd = hold(other.ops / "tmp/rope.lock")
    try:
        assert load(there, tmp_path / "file", replace=True)["data"]["held"]
        assert [path.name for path in there.rglob("*.so")] == ["rope.so"]
    finally:
        os.close(fd)


def test_a_load_that_was_killed_is_done_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    release(here, "0.7.2.post1")
    save(here, tmp_path / "file")
    rename, count = os.rename, iter(range(100))

    class Killed(BaseException):
        pass

    def die(*words: Any, **more: Any) -> None:
        if next(count) == 1:
            raise Killed
        rename(*words, **more)

    with monkeypatch.context() as patched:
        patched.setattr("envgen.inside.jit.archive.os.rename", die)
        assert not load(there, tmp_path / "file")["ok"]
    put(there / ".envgen-work-0123/0.5.3/x")  # of one that could not even clean up
    assert load(there, tmp_path / "file")["ok"]
    assert {path.name for path in there.rglob("*.so")} == {path.name for path in here.rglob("*.so")}
    assert not list(there.glob(".envgen-*-*"))


def test_save_leaves_links_out_and_says_so(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "here", "0.7.2.post1")
    (shelf.module("page") / "link").symlink_to("/etc/passwd")
    os.mkfifo(shelf.ops / "page/fifo")
    result = save(tmp_path / "here", tmp_path / "file")["result"]
    assert sorted(problem.split(": ")[0].rpartition("/")[2] for problem in result["problems"]) == ["fifo", "link"]
    assert load(tmp_path / "there", tmp_path / "file")["ok"]
    assert not (tmp_path / "there/0.7.2.post1/121a/cached_ops/page/link").is_symlink()


def test_nothing_to_save(tmp_path: Path) -> None:
    assert save(tmp_path / "none", tmp_path / "file")["kind"] == "not_found"
    Shelf(tmp_path / "empty")
    assert save(tmp_path / "empty", tmp_path / "file")["kind"] == "not_found"
