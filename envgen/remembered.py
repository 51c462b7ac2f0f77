"""Small records of finished work in the user's cache: checksummed, owned, whole or absent. Imports nothing heavy."""

from __future__ import annotations

import binascii
import contextlib
import json
import os
from pathlib import Path
from typing import Any

KEPT = 64  # records of a kind; each is about 60 KB


def cache_folder(name: str) -> Path:
    """``~/.cache/envgen/<name>``, or below XDG_CACHE_HOME."""
    return Path(os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser()), "envgen", name)


def owned(descriptor: int) -> bool:
    """True when only this user can have written the open file: others must not put code or results under our hands."""
    status = os.fstat(descriptor)
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def write_new(path: Path, content: bytes) -> None:
    """Put a whole file in place or none; any failure leaves things as they are."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(content)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def _check(body: bytes) -> bytes:
    """Against accidents; against people there is ``owned``."""
    return b"%08x" % binascii.crc32(body)


class Record:
    """One record under ``key`` in the folder ``kind``. One that is missing, foreign or damaged is the same as none."""

    def __init__(self, kind: str, key: str) -> None:
        self.path = cache_folder(kind) / f"{key}.json"

    def load(self) -> dict[str, Any] | None:
        """What ``save`` was given, or None."""
        try:
            with self.path.open("rb") as file:
                if not owned(file.fileno()):
                    return None
                digest, _, body = file.read().partition(b"\n")
            if _check(body) != digest:
                return None
            found: dict[str, Any] = json.loads(body)
            return found
        except (OSError, ValueError):
            return None

    def save(self, document: dict[str, Any]) -> None:
        """Remember it, and forget the oldest ones."""
        body = json.dumps(document).encode()
        write_new(self.path, _check(body) + b"\n" + body)
        with contextlib.suppress(OSError):
            records = sorted(self.path.parent.glob("*.json"), key=lambda path: path.stat().st_mtime)
            for path in records[:-KEPT]:
                path.unlink(missing_ok=True)
