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
        if path not in self._stamps:
            try:
                status = os.stat(path)
                self._stamps[path] = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            except (OSError, ValueError):
                self._stamps[path] = None
        return self._stamps[path]

    def digest(self, path: str) -> str:
        """SHA-256 of its bytes; empty when it can't be read."""
        if path not in self._digests:
            self._digests[path] = digest_of(path)
        return self._digests[path]

    def real(self, path: str) -> str:
        """The path without links. Only folders are resolved one by one: a hundred headers share one."""
        head, _, tail = path.rpartition("/")
        if head not in self._real:
            self._real[head] = os.path.realpath(head or "/")
        whole = self._real[head].rstrip("/") + "/" + tail
        return os.path.realpath(whole) if tail in ("", ".", "..") or os.path.islink(whole) else whole


def digest_of(path: str) -> str:
    """SHA-256 of a regular file; empty for anything else."""
    digest = hashlib.sha256()
    try:
        # O_NONBLOCK: opening a FIFO must not hang.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return ""
            for block in iter(lambda: file.read(1 << 20), b""):
                digest.update(block)
    except (OSError, ValueError):
        return ""
    return digest.hexdigest()


def digest_of_text(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
