"""What a saved cache looks like: a tar archive whose first member says what it is and whose last says that it is whole.

Times are kept to the nanosecond, in the extended headers of the POSIX format: ninja compiles again what is younger than
its record says, and a baseline knows its library by this time. Members are named as they lie below the cache's root.

The archive may come from anywhere, so it is read here header by header, each of a bounded size, rather than by
``tarfile``, which takes an extended header of gigabytes into memory before anybody is asked.
"""

from __future__ import annotations

import os
import tarfile

from envgen.inside.jit.fault import Fault
from envgen.inside.jit.layout import BESIDE
from envgen.inside.jit.names import is_reserved
from envgen.inside.jit.tree import DEEPEST, short

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO, Iterator

FORMAT = 1
HEAD = "envgen-cache.json"
END = "envgen-cache.end"
OURS = (".envgen", "baseline")
SHARED = (".ninja_log", ".ninja_deps")  # of all modules of a shelf, up to FlashInfer 0.6.0
MOST = 1_000_000  # members
BLOCK = 512
_LONGEST = 1024  # bytes of a name; FlashInfer's longest are some 400
_PART = 255  # what a file system takes
_HEADER = 64 << 10  # bytes of one extended header; envgen writes some 40, with a long name some 500
_HEADERS = 1 << 30  # bytes of all of them
_BIGGEST = 1 << 40  # bytes of one file


def why_not(name: str, *, folder: bool) -> str:
    """Why this cache would not hold a file (or ``folder``) of this name; empty when it would."""
    size = len(os.fsencode(name))
    if not name or size > _LONGEST or "\0" in name:
        return "is not a name for a file in a cache" if size <= _LONGEST else "has a name longer than any in a cache"
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts):
        return "leads out of the cache"
    if len(parts) > DEEPEST:
        return "is nested more than " + str(DEEPEST) + " folders deep"
    if any(len(os.fsencode(part)) > _PART for part in parts):
        return "has a name longer than a file system takes"
    if parts[0] == OURS[0]:
        return "" if 2 <= len(parts) <= 5 and parts[1] == OURS[1] else "does not belong into a cache"
    if parts[0].startswith(".") or parts[0] in BESIDE or (len(parts) == 1 and not folder):
        return "does not belong into a cache"
    for depth in (1, 2):
        if len(parts) > depth and parts[depth] in ("cached_ops", "generated"):
            return _why_not_below(parts[depth:], folder=folder)
    if not folder or len(parts) > 2 or parts[-1].startswith("."):
        return "does not belong into a cache"
    return ""


def _why_not_below(parts: list[str], *, folder: bool) -> str:
    if len(parts) == 1:
        return "" if folder else "is a file where a folder must be"
    if parts[0] != "cached_ops":
        return ""
    if is_reserved(parts[1]):
        shared = not folder and len(parts) == 2 and parts[1] in SHARED
        return "" if shared else "belongs to the cache's own housekeeping"
    return "" if folder or len(parts) > 2 else "is a file where a module's folder must be"


def parts_of(name: str, *, folder: bool) -> list[str]:
    """The parts of a member's name; Fault for whatever this cache would not hold at that place."""
    why = why_not(name, folder=folder)
    if why:
        raise refused(name, why)
    return name.split("/")


def refused(name: str, why: str) -> Fault:
    return Fault("refused", "the archive is not taken: " + repr(short(name)) + " " + why + "; nothing was changed")


def damaged(why: str) -> Fault:
    return Fault("refused", "the archive is damaged: " + why + "; nothing was changed")


class Sum:
    """SHA-256 over names, times and bytes in their order. It stands in the last member: a library with one wrong bit
    would be loaded into a GPU."""

    def __init__(self) -> None:
        from hashlib import sha256

        self._digest = sha256()

    def member(self, name: str, when: int, size: int) -> None:
        words = name + "\0" + str(when) + "\0" + str(size) + "\0"
        self._digest.update(words.encode("utf-8", "surrogateescape"))

    def data(self, block: bytes) -> None:
        self._digest.update(block)

    def text(self) -> str:
        return str(self._digest.hexdigest())


class Summed:
    """A file whose bytes go into a sum as they are read."""

    def __init__(self, file: object, total: Sum) -> None:
        self._file = file
        self._total = total

    def read(self, size: int = -1) -> bytes:
        block: bytes = self._file.read(size)  # type: ignore[attr-defined]
        self._total.data(block)
        return block


class Member:
    """One file or folder of an archive. ``when`` is in nanoseconds."""

    __slots__ = ("is_folder", "mode", "name", "size", "when")

    def __init__(self, name: str, size: int, when: int, mode: int, *, is_folder: bool) -> None:
        self.name = name
        self.size = size
        self.when = when
        self.mode = mode
        self.is_folder = is_folder


class Members:
    """Reads the members of an unpacked stream, one after the other; a Fault for what envgen never writes."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._left = 0  # bytes of the current member that were not read yet
        self._padding = 0
        self._headers = 0

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
        more: dict[str, str] = {}
        if info.type == tarfile.XHDTYPE:
            self._headers += info.size
            if not 0 <= info.size <= _HEADER or self._headers > _HEADERS:
                raise damaged("it has a header of " + str(info.size) + " bytes")
            more = _records(self._exactly(info.size + -info.size % BLOCK)[: info.size])
            info = self._header()
            if info is None:
                raise damaged("it ends after a header")
        is_folder = info.type == tarfile.DIRTYPE
        name = more.get("path", info.name)
        if is_folder:
            name = name.rstrip("/")
        if not is_folder and info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
            raise refused(name, "is neither a plain file nor a folder")
        if any(key.startswith("GNU.sparse.") for key in more):
            raise refused(name, "is neither a plain file nor a folder")
        size = 0 if is_folder else _number(more.get("size", str(info.size)))
        self._left, self._padding = size, -size % BLOCK
        when = nanoseconds(more.get("mtime", str(info.mtime)))
        return Member(name, size, when, info.mode, is_folder=is_folder)

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


def _records(data: bytes) -> dict[str, str]:
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


def time_text(nanoseconds: int) -> str:
    """As it stands in the extended header: seconds, a point, nine digits."""
    return "%d.%09d" % divmod(nanoseconds, 10**9)


def nanoseconds(text: str) -> int:
    """The time of an extended header; Fault for what no file of a cache has."""
    whole, _, fraction = text.partition(".")
    if not (whole.isascii() and whole.isdigit() and len(whole) <= 11):
        raise damaged("a file of it has an impossible time")
    if fraction and not (fraction.isascii() and fraction.isdigit() and len(fraction) <= 9):
        raise damaged("a file of it has an impossible time")
    return int(whole) * 10**9 + int((fraction + "000000000")[:9])
