"""The files that modules were compiled from: each is looked at once, however many modules include it."""

from __future__ import annotations

import hashlib
import os
import stat
from functools import lru_cache
from typing import Tuple

Stamp = Tuple[int, int, int, int]  # inode, size, mtime and ctime in ns


class Files:
    """Remembers what it saw: stamps, SHA-256 digests (empty where there are none), real paths."""

    def __init__(self) -> None:
        self.stamp = lru_cache(None)(stamp_of)
        self.digest = lru_cache(None)(digest_of)
        self.real = lru_cache(None)(os.path.realpath)


def stamp_of(path: str) -> Stamp | None:
    """None when it isn't there. Links are followed, as the compiler did."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


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
