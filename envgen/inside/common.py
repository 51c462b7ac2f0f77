"""Helpers for the programs in a container; sent with each of them."""

from __future__ import annotations

import hashlib
import os
import re


def read_bytes(path: str, limit: int = 1 << 20) -> bytes:
    """The first ``limit`` bytes of a file; empty where it can't be read."""
    try:
        with open(path, "rb") as file:
            return file.read(limit)
    except OSError:
        return b""


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
    match = re.search(r"^%s\b[^=\n]*=(?:[^=\n'\"]*=)?[ \t]*['\"]([^'\"\n]*)" % name, text, re.MULTILINE)
    return match.group(1) if match else ""


def normal(name: str) -> str:
    """A distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def sha256_of(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()
