"""Helpers for the programs in a container; sent with each of them."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from typing import Any, Dict

Doc = Dict[str, Any]
PATCHES = "/opt/envgen/patches.json"  # by apply-patches, while the image was built


def read_bytes(path: str, limit: int = 1 << 20) -> bytes:
    """The first ``limit`` bytes of a file; empty where it can't be read, or is none: a pipe would
    never end.
    """
    try:
        with open(path, "rb", opener=without_waiting) as file:
            status = os.fstat(file.fileno())
            return file.read(limit) if stat.S_ISREG(status.st_mode) else b""
    except (OSError, ValueError):  # ValueError: a null character in the name
        return b""


def without_waiting(path: str, flags: int) -> int:
    """For ``open``: a pipe without a writer is opened at once, too."""
    return os.open(path, flags | os.O_NONBLOCK)


def read_text(path: str, limit: int = 20000) -> str:
    return read_bytes(path, limit).decode("utf-8", "replace")


def listing(folder: str | int) -> list[str]:
    """The sorted names in a folder; none where it can't be read."""
    try:
        return sorted(os.listdir(folder or "."))
    except OSError:
        return []


def value_of(name: str, text: str) -> str:
    """The text of a name in a generated file (`NAME: str = other = "text"`); "" without one."""
    match = re.search(
        rf"^{name}\b[^=\n]*=(?:[^=\n'\"]*=)?[ \t]*['\"]([^'\"\n]*)", text, re.MULTILINE
    )
    return match.group(1) if match else ""


def number_in(path: str, name: str) -> int:
    """The number after a name that begins a line, as the kernel writes them; 0 without one."""
    match = re.search(rf"^{name}\s+(\d+)", read_text(path, 1 << 20), re.MULTILINE)
    return int(match[1]) if match else 0


def driver_of() -> str:
    """The version of this machine's NVIDIA driver; "" without one."""
    match = re.search(r"\b(\d{3,4}(?:\.\d+){1,2})\b", read_text("/proc/driver/nvidia/version"))
    return match[1] if match else ""


def normal(name: str) -> str:
    """A distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def sha256_of(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()
