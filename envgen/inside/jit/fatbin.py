"""Which GPU code an ELF library holds: the fat binaries in its ``.nv_fatbin`` sections, by their headers alone.

Measured on what nvcc 13.0 writes: a container starts with MAGIC, its header's length and the length of what follows;
in it lie entries with kind (1 PTX, 2 machine code), their own two lengths, the arch as a number such as 121, and flags,
of which 0x100000 stands for the suffix a and 0x200000 for f. Only headers are read: the size of a
library does not matter.
"""

from __future__ import annotations

import errno
import os
import stat
import struct

MAGIC = 0xBA55ED50
SECTIONS = (b".nv_fatbin", b"__nv_relfatbin")
MOST = 100_000  # entries of one library; more is not a library but an accident
_SUFFIX_A = 0x100000
_SUFFIX_F = 0x200000


class Damaged(Exception):
    """It claims to be a library and is not one that can be read."""


def archs_of(path: str) -> list[str] | None:
    """``["compute_90", "sm_121a"]``; empty: no GPU code; None: no ELF file. Raises Damaged, or OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return None
        head = os.pread(fd, 64, 0)
        if head[:4] != b"\x7fELF":
            return None
        if len(head) < 64 or head[4:6] != b"\x02\x01":
            raise Damaged("is not a 64-bit little-endian ELF file")
        found: set[str] = set()
        for offset, size in _sections(fd, head, status.st_size):
            _read_section(fd, offset, min(offset + size, status.st_size), found)
        return sorted(found)
    except struct.error:
        raise Damaged("ends in the middle of a header") from None
    except OverflowError:
        raise Damaged("names an offset that no file has") from None
    except OSError as error:
        if error.errno == errno.EINVAL:  # the same, just below the limit
            raise Damaged("names an offset that no file has") from None
        raise
    finally:
        os.close(fd)


def _sections(fd: int, head: bytes, size: int) -> list[tuple[int, int]]:
    """Offset and length of each section with GPU code."""
    start = struct.unpack_from("<Q", head, 40)[0]
    width, count, names = struct.unpack_from("<HHH", head, 58)
    if not start or not count:
        return []
    if width != 64 or names >= count or start + width * count > size:
        raise Damaged("has a table of sections that is outside of it")
    table = os.pread(fd, width * count, start)
    entries = [struct.unpack_from("<IIQQQQ", table, number * width) for number in range(count)]
    text = os.pread(fd, min(entries[names][5], 1 << 20), entries[names][4])
    found = []
    for entry in entries:
        name = text[entry[0] : text.find(b"\0", entry[0])]
        if name in SECTIONS:
            found.append((entry[4], entry[5]))
    return found


def _read_section(fd: int, position: int, end: int, found: set[str]) -> None:
    """Containers lie one after the other, each at a multiple of eight."""
    entries = 0
    while position + 16 <= end:
        magic, _, head, size = struct.unpack("<IHHQ", os.pread(fd, 16, position))
        if magic != MAGIC:
            position += 8  # padding
            entries += 1
            if entries > MOST:
                raise Damaged("holds no fat binary where its header says so")
            continue
        at = position + head
        stop = at + size
        if head < 16 or stop > end:
            raise Damaged("holds a fat binary that is cut off")
        while at + 48 <= stop:
            kind, _, inner, length = struct.unpack("<HHIQ", os.pread(fd, 16, at))
            rest = os.pread(fd, 32, at + 16)
            number = struct.unpack_from("<I", rest, 12)[0]
            flags = struct.unpack_from("<Q", rest, 24)[0]
            entries += 1
            if inner < 48 or at + inner + length > stop or entries > MOST:
                raise Damaged("holds an entry that is cut off")
            suffix = "a" if flags & _SUFFIX_A else "f" if flags & _SUFFIX_F else ""
            if kind in (1, 2):
                found.add(("compute_" if kind == 1 else "sm_") + str(number) + suffix)
            at += inner + length
        position = stop + (-stop % 8)
