"""The members of a tar archive that may come from anywhere, read header by header, each of a bounded size.

``tarfile`` takes an extended header of gigabytes into memory before anything can be asked, and where it can be stopped
differs from release to release.
"""

from __future__ import annotations

import tarfile
from dataclasses import dataclass
from typing import BinaryIO, Dict, Iterator

from envgen.inside.jit.fault import Fault
from envgen.inside.jit.tree import short

MOST = 1_000_000  # members
BLOCK = 512
_HEADER = 8 << 10  # bytes of one extended header; envgen writes some 40, with the longest name 1,100
_BIGGEST = 1 << 40  # bytes of one file


def refused(name: str, why: str) -> Fault:
    return Fault("refused", "the archive is not taken: " + repr(short(name)) + " " + why + "; nothing was changed")


def damaged(why: str) -> Fault:
    return Fault("refused", "the archive is damaged: " + why + "; nothing was changed")


def nanoseconds(text: str) -> int:
    """The time of an extended header; Fault for what no file of a cache has."""
    whole, _, fraction = text.partition(".")
    if len(whole) > 11 or len(fraction) > 9 or not (text.isascii() and whole.isdigit() and (fraction or "0").isdigit()):
        raise damaged("a file of it has an impossible time")
    return int(whole) * 10**9 + int((fraction + "000000000")[:9])


@dataclass
class Member:
    """One file or folder of an archive. ``when`` is in nanoseconds."""

    name: str
    size: int
    when: int
    mode: int
    is_folder: bool


class Members:
    """Reads the members of an unpacked stream, one after the other; a Fault for what envgen never writes."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._left = 0  # bytes of the current member that were not read yet
        self._padding = 0

    def __iter__(self) -> Iterator[Member]:
        for _ in range(MOST):
            member = self._next()
            if member is None:
                return
            yield member
        raise Fault("refused", "the archive holds more than " + str(MOST) + " files; nothing was changed")

    def read(self, size: int) -> bytes:
        """Some of the current member's bytes; empty at its end."""
        block = self._stream.read(min(size, self._left))
        if not block and self._left:
            raise damaged("it ends in the middle of a file")
        self._left -= len(block)
        return block

    def _next(self) -> Member | None:
        while self._left:
            self.read(1 << 20)
        self._exactly(self._padding)
        info = self._header()
        if info is None:
            return None
        more: Dict[str, str] = {}
        if info.type == tarfile.XHDTYPE:
            if not 0 <= info.size <= _HEADER:
                raise damaged("it has a header of " + str(info.size) + " bytes")
            more = _records(self._exactly(info.size + -info.size % BLOCK)[: info.size])
            info = self._header()
            if info is None:
                raise damaged("it ends after a header")
        is_folder = info.type == tarfile.DIRTYPE
        name = more.get("path", info.name)
        if is_folder:
            name = name.rstrip("/")
        is_sparse = any(key.startswith("GNU.sparse.") for key in more)
        if is_sparse or info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE):
            raise refused(name, "is neither a plain file nor a folder")
        size = 0 if is_folder else _number(more.get("size", str(info.size)))
        self._left, self._padding = size, -size % BLOCK
        when = nanoseconds(more.get("mtime", str(info.mtime)))
        return Member(name, size, when, info.mode, is_folder)

    def _header(self) -> tarfile.TarInfo | None:
        """The next header block; None at the end of the archive."""
        block = self._stream.read(BLOCK)
        if not block or block == bytes(BLOCK):
            return None
        if len(block) < BLOCK:
            raise damaged("it ends in the middle of a header")
        try:
            return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.TarError as error:
            raise damaged(str(error)) from None

    def _exactly(self, size: int) -> bytes:
        data = self._stream.read(size) if size else b""
        if len(data) < size:
            raise damaged("it ends in the middle of a file")
        return data


def _records(data: bytes) -> Dict[str, str]:
    """The ``LENGTH key=value`` lines of an extended header."""
    found = {}
    while data.strip(b"\0"):
        digits, space, _ = data[:20].partition(b" ")
        if not space or not digits.isdigit() or not len(digits) + 3 <= int(digits) <= len(data):
            raise damaged("a header of it can't be read")
        record, data = data[len(digits) + 1 : int(digits)], data[int(digits) :]
        key, equals, value = record.partition(b"=")
        if not equals or not value.endswith(b"\n"):
            raise damaged("a header of it can't be read")
        found[key.decode("utf-8", "surrogateescape")] = value[:-1].decode("utf-8", "surrogateescape")
    return found


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) < _BIGGEST):
        raise damaged("a file of it has an impossible size")
    return int(text)
