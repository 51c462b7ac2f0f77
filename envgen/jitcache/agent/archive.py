"""What a saved cache looks like: a tar archive whose first member says what it is and whose last says that it is whole.

Times are kept to the nanosecond, in the extended headers of the POSIX format: ninja compiles again what is younger than
its record says, and a baseline knows its library by this time. Members are named as they lie below the cache's root.
"""

from __future__ import annotations

from envgen.jitcache.agent.fault import Fault
from envgen.jitcache.agent.layout import BESIDE
from envgen.jitcache.agent.names import is_reserved

FORMAT = 1
HEAD = "envgen-cache.json"
END = "envgen-cache.end"
OURS = (".envgen", "baseline")
SHARED = (".ninja_log", ".ninja_deps")  # of all modules of a shelf, up to FlashInfer 0.6.0
_LONGEST = 4000


def parts_of(name: str, *, folder: bool) -> list[str]:
    """The parts of a member's name; Fault for whatever this cache would not hold at that place."""
    if not name or len(name) > _LONGEST or "\0" in name:
        raise refused(name, "is no name for a file in a cache")
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise refused(name, "leads out of the cache")
    if parts[0] == OURS[0]:
        if len(parts) < 2 or parts[1] != OURS[1] or len(parts) > 5:
            raise refused(name, "does not belong into a cache")
        return parts
    if parts[0].startswith(".") or parts[0] in BESIDE or (len(parts) == 1 and not folder):
        raise refused(name, "does not belong into a cache")
    for depth in (1, 2):
        if len(parts) > depth and parts[depth] in ("cached_ops", "generated"):
            _check_below(name, parts[depth:], folder=folder)
            return parts
    if not folder or len(parts) > 2 or parts[-1].startswith("."):
        raise refused(name, "does not belong into a cache")
    return parts


def _check_below(name: str, parts: list[str], *, folder: bool) -> None:
    if len(parts) == 1:
        if not folder:
            raise refused(name, "is a file where a folder must be")
    elif parts[0] == "cached_ops" and is_reserved(parts[1]):
        if folder or len(parts) > 2 or parts[1] not in SHARED:
            raise refused(name, "belongs to the cache's own housekeeping")
    elif parts[0] == "cached_ops" and len(parts) == 2 and not folder:
        raise refused(name, "is a file where a module's folder must be")


def refused(name: str, why: str) -> Fault:
    return Fault("refused", "the archive is not taken: " + repr(name) + " " + why + "; nothing was changed")


class Sum:
    """SHA-256 over names, times and bytes in their order. It stands in the last member: a library with one wrong bit
    would be loaded into a GPU."""

    def __init__(self) -> None:
        try:
            from _hashlib import openssl_sha256 as sha256
        except ImportError:
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


def time_text(nanoseconds: int) -> str:
    """As it stands in the extended header: seconds, a point, nine digits."""
    return "%d.%09d" % divmod(nanoseconds, 10**9)


def nanoseconds(text: str) -> int:
    """The time of an extended header; ValueError for what no file of a cache has."""
    whole, _, fraction = text.partition(".")
    if not (whole.isascii() and whole.isdigit() and len(whole) <= 11):
        raise ValueError(text)
    if fraction and not (fraction.isascii() and fraction.isdigit() and len(fraction) <= 9):
        raise ValueError(text)
    return int(whole) * 10**9 + int((fraction + "000000000")[:9])
