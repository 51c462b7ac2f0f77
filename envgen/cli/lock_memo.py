"""Remembers that a lock was found good, under a digest of what that depended on: then nothing need be parsed again.

Imports next to nothing: `envgen lock --check` is asked at every commit.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envgen.cli.common import Session

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120


class Memo:
    """One project's and profile's memory, below .envgen/state. A file that is missing or foreign means: look again."""

    def __init__(self, session: Session) -> None:
        file = os.path.abspath(session.file) if session.file else _find(os.getcwd())  # noqa: PTH100, PTH109
        self._root = os.path.dirname(file) if file else ""  # noqa: PTH120
        self._path = os.path.join(self._root, ".envgen", "state", "lock-check")  # noqa: PTH118
        self._key = _key(file, self._root, session.profile_name or "") if file else ""

    def is_known_good(self) -> bool:
        """True when the same bytes were found good before."""
        try:
            with open(self._path, encoding="ascii") as file:  # noqa: PTH123
                return bool(self._key) and file.read().strip() == self._key
        except (OSError, ValueError):
            return False

    def remember_good(self) -> None:
        """Note that what is there now is good."""
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(self._path), exist_ok=True)  # noqa: PTH103, PTH120
            with open(self._path, "w", encoding="ascii") as file:  # noqa: PTH123
                file.write(self._key + "\n")


def _find(folder: str) -> str:
    while True:
        candidate = os.path.join(folder, "envgen.yaml")  # noqa: PTH118
        if os.path.isfile(candidate):  # noqa: PTH113
            return candidate
        above = os.path.dirname(folder)  # noqa: PTH120
        if above == folder:
            return ""
        folder = above


def _key(file: str, root: str, profile: str) -> str:
    """Of the project file, the lock, all patches, and the code that compares them."""
    found = hashlib.sha256(profile.encode("utf-8", "surrogateescape"))
    code = [os.path.join(_HERE, "..", *parts) for parts in (("lock", "ask.py"), ("profile", "model.py"))]  # noqa: PTH118
    paths = [file, os.path.join(root, "envgen.lock"), *code]  # noqa: PTH118
    for folder, names, files in os.walk(os.path.join(root, "patches")):  # noqa: PTH118
        names.sort()
        paths += [os.path.join(folder, name) for name in sorted(files)]  # noqa: PTH118
    try:
        for path in paths:
            with open(path, "rb") as opened:  # noqa: PTH123
                content = opened.read()
            found.update(f"\0{os.path.relpath(path, root)}\0{len(content)}\0".encode("utf-8", "surrogateescape"))
            found.update(content)
    except OSError:
        return ""
    return found.hexdigest()
