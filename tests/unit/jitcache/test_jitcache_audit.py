"""Which GPU code a library holds, by its headers; and what a GPU can run of it."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jitcache_layouts import Shelf, put

from envgen.binding import bind
from envgen.inside.jit.libraries import MAGIC, Damaged, Library, archs_of
from envgen.inside.jit.main import answer
from envgen.jitcache.audit import Audit, findings, judge, runs_on

FLAGS = {"": 0x11, "a": 0x100011, "f": 0x200011}


def fat(*codes: str) -> bytes:
    """One container as nvcc writes it: ``sm_121a``, ``compute_90``."""
    body = b""
    for code in codes:
        kind, _, arch = code.partition("_")
        suffix = arch[-1] if arch[-1] in "af" else ""
        number = int(arch.rstrip("af"))
        payload = b"\x7fELF" + bytes(60)
        head = struct.pack("<HHIQ", 2 if kind == "sm" else 1, 0x101, 64, len(payload))
        head += struct.pack("<IIHHI", 0, 0, 0, 0, number) + bytes(8) + struct.pack("<Q", FLAGS[suffix])
        body += head.ljust(64, b"\0") + payload
    return struct.pack("<IHHQ", MAGIC, 1, 16, len(body)) + body


def elf(section: bytes, name: bytes = b".nv_fatbin") -> bytes:
    """The smallest 64-bit library with this section."""
    names = b"\0" + name + b"\0.shstrtab\0"
    at = 64
    names_at = at + len(section)
    table_at = names_at + len(names)
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, table_at, 0, 64, 56, 0, 64, 3, 2)
    empty = bytes(64)
    one = struct.pack("<IIQQQQIIQQ", 1, 1, 0, 0, at, len(section), 0, 0, 8, 0)
    two = struct.pack("<IIQQQQIIQQ", 2 + len(name), 3, 0, 0, names_at, len(names), 0, 0, 1, 0)
    return head + section + names + empty + one + two


@pytest.mark.parametrize("name", [b".nv_fatbin", b"__nv_relfatbin"])
def test_the_archs_of_a_library(tmp_path: Path, name: bytes) -> None:
    path = put(tmp_path / "a.so", elf(fat("sm_121a") + fat("sm_90", "compute_120", "sm_120f"), name))
    assert archs_of(str(path)) == ["compute_120", "sm_120f", "sm_121a", "sm_90"]


def test_without_gpu_code_and_no_library(tmp_path: Path) -> None:
    assert archs_of(str(put(tmp_path / "a.so", elf(b"x" * 64, b".text")))) == []
    assert archs_of(str(put(tmp_path / "b.so", "not ELF"))) is None
    with pytest.raises(Damaged):
        archs_of(str(put(tmp_path / "c.so", b"\x7fELF\x01\x01" + bytes(80))))


def test_cut_off_anywhere(tmp_path: Path) -> None:
    whole = elf(fat("sm_121a", "sm_90"))
    for length in range(4, len(whole)):
        try:
            archs_of(str(put(tmp_path / "a.so", whole[:length])))
        except Damaged:
            continue


@given(data=st.binary(max_size=200), at=st.integers(0, 400), mask=st.integers(1, 255))
def test_garbage_never_hangs_or_raises_anything_else(tmp_path: Path, data: bytes, at: int, mask: int) -> None:
    broken = bytearray(elf(fat("sm_121a") + data))
    broken[at % len(broken)] ^= mask
    with contextlib.suppress(Damaged):
        archs_of(str(put(tmp_path / "a.so", bytes(broken))))


@pytest.mark.parametrize("offset", [1 << 63, (1 << 63) - 1, (1 << 64) - 1])
def test_offsets_that_no_file_has(tmp_path: Path, offset: int) -> None:
    broken = bytearray(elf(fat("sm_121a")))
    struct.pack_into("<Q", broken, len(broken) - 64 + 24, offset)  # where the names of the sections lie
    with pytest.raises(Damaged):
        archs_of(str(put(tmp_path / "a.so", bytes(broken))))


@pytest.mark.parametrize(
    ("code", "gpu", "can"),
    [
        ("sm_121a", (12, 1), True), ("sm_121a", (12, 0), False), ("sm_120a", (12, 1), False),
        ("sm_120f", (12, 1), True), ("sm_120", (12, 1), True), ("sm_121", (12, 0), False), ("sm_90", (12, 1), False),
        ("compute_90", (12, 1), True), ("compute_90a", (12, 1), False), ("compute_120f", (12, 1), True),
        ("sm_100f", (12, 1), False), ("nonsense", (12, 1), False),
    ],
)  # fmt: skip
def test_what_runs_where(code: str, gpu: tuple[int, int], can: bool) -> None:
    assert runs_on(code, *gpu) is can


def library(*archs: str, owner: str = "cache", problem: str = "") -> Library:
    return Library("/x.so", owner, "x", "0.5.3", "121a", list(archs), problem)


def test_verdicts() -> None:
    assert judge(library("sm_121a"), [(12, 1)]).verdict == "ok"
    assert judge(library("sm_90", "compute_90"), [(12, 1)]).verdict == "ptx"
    assert judge(library("sm_90"), [(12, 1)]).verdict == "error"
    assert judge(library("sm_121a"), [(12, 1), (12, 0)]).message.endswith("12.0 can run")
    assert judge(library(), [(12, 1)]).verdict == "none"
    assert judge(library(problem="ends early"), [(12, 1)]).verdict == "error"


def test_the_operation(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    put(shelf.module("page") / "page.so", elf(fat("sm_121a")))
    put(shelf.module("rope") / "rope.so", elf(fat("sm_90a")))
    put(Shelf(tmp_path, "0.5.3", "90a").module("page") / "page.so", elf(fat("sm_90a")))
    document = answer({"operation": "audit", "root": str(tmp_path), "names": ["sm_121a"]})
    found = bind(Audit, document["result"])
    judged = {(f.library.arch, f.library.name): f.verdict for f in findings(found, [(12, 1)], ["121a"])}
    assert judged == {("121a", "page"): "ok", ("121a", "rope"): "error"}
