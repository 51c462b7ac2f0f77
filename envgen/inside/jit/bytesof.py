"""The files that modules were compiled from: each is looked at once, however many modules include it."""

from __future__ import annotations

import hashlib
import os
import stat
from typing import Tuple

Stamp = Tuple[int, int, int, int]  # inode, size, mtime and ctime in ns


class Files:
    """Remembers what it saw: stamps, digests, real paths."""

    def __init__(self) -> None:
        self._stamps: dict[str, Stamp | None] = {}
        self._digests: dict[str, str] = {}
        self._real: dict[str, str] = {}

    def stamp(self, path: str) -> Stamp | None:
        """None when it isn't there. Links are followed, as the compiler did."""
        if path in self._stamps:
            return self._stamps[path]
        try:
            status = os.stat(path)
            found: Stamp | None = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        except (OSError, ValueError):
            found = None
        self._stamps[path] = found
        return found

    def digest(self, path: str) -> str:
        """SHA-256 of its bytes; empty when it can't be read."""
        found = self._digests.get(path)
        if found is None:
            found = self._digests[path] = digest_of(path)
        return found

    def real(self, path: str) -> str:
        """The path without links. Only folders are resolved one by one: a hundred headers share one."""
        head, _, tail = path.rpartition("/")
        if head not in self._real:
            self._real[head] = os.path.realpath(head or "/")
        whole = self._real[head].rstrip("/") + "/" + tail
        return os.path.realpath(whole) if tail in ("", ".", "..") or os.path.islink(whole) else whole


def digest_of(path: str) -> str:
    """SHA-256 of a regular file; empty for anything else."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):
        return ""
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return ""
        digest = hashlib.sha256()
        while True:
            block = os.read(fd, 1 << 20)
            if not block:
                return digest.hexdigest()
            digest.update(block)
    except OSError:
        return ""
    finally:
        os.close(fd)


def digest_of_text(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
