"""Text that every rendered language can carry, and the two kinds of paths. ``values.py`` offers them with the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from envgen.text import escaped, forbidden_character

LONGEST_NAME = 255  # bytes of one name in a path, on every Linux file system
LONGEST_PATH = 4000
LONGEST = 60_000  # bytes; the Dockerfile parser gives up on lines of more than 64 KiB


def plain_text(text: str) -> str:
    """Return ``text`` if it can be carried by a Dockerfile, YAML and a shell alike; else raise ``ValueError``.

    Control characters (newline, NUL, tab, NEL, ...), line separators, bidi controls and lone surrogates are refused:
    a Dockerfile has no way to write them, or they make a line look like another one.
    """
    found = forbidden_character(text)
    if found:
        if "\ud800" <= found <= "\udfff":
            raise ValueError("contains a lone surrogate, which is not text")
        if found < " " or "\x7f" <= found <= "\x9f":
            raise ValueError(f"contains the control character {found!r}; a value is one line of printable text")
        raise ValueError(f"contains {escaped(found)}, which breaks or reorders a line")
    if len(text) * 4 > LONGEST and len(text.encode()) > LONGEST:
        raise ValueError(f"is longer than {LONGEST} bytes, which a Dockerfile cannot carry in one line")
    return text


def _path_text(text: str) -> str:
    """Text that a file system can take as a path."""
    plain_text(text)
    if len(text.encode()) > LONGEST_PATH or any(len(part.encode()) > LONGEST_NAME for part in text.split("/")):
        raise ValueError(f"is too long for a path: {LONGEST_PATH} bytes, and {LONGEST_NAME} for each name, are allowed")
    return text


@dataclass(frozen=True)
class ContainerPath:
    """An absolute, normalised POSIX path inside the container."""

    path: str

    PATTERN: ClassVar[str] = r"^/(?!([^/]*/)*\.\.(/|$))[^:\x00-\x1f\x7f]*$"
    EXAMPLE: ClassVar[str] = "/workspace/vllm"

    @classmethod
    def parse(cls, text: str) -> ContainerPath:
        _path_text(text)
        if not text.startswith("/"):
            raise ValueError(f"{text!r} is not an absolute path inside the container")
        if ":" in text:
            raise ValueError(f"{text!r} contains a colon, which separates the fields of a mount and of PYTHONPATH")
        parts = [part for part in text.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise ValueError(f"{text!r} contains '..'")
        return cls("/" + "/".join(parts))

    def __str__(self) -> str:
        return self.path

    def is_parent_of(self, other: ContainerPath) -> bool:
        """True when ``other`` lies strictly below this folder."""
        return other.path != self.path and other.path.startswith(self.path.rstrip("/") + "/")


@dataclass(frozen=True)
class HostPath:
    """A path on the machine of the user: absolute, ``~/...`` or relative to the project's folder.

    It stays as written: a rendered file may only carry it when it is relative to the project or begins with ``~``.
    """

    path: str

    PATTERN: ClassVar[str] = r"^[^:\x00-\x1f\x7f]+$"
    EXAMPLE: ClassVar[str] = "../vllm"

    @classmethod
    def parse(cls, text: str) -> HostPath:
        _path_text(text)
        if not text:
            raise ValueError("is empty; write a path")
        if ":" in text:
            raise ValueError(f"{text!r} contains a colon, which separates the fields of a mount")
        return cls(text)

    def __str__(self) -> str:
        return self.path

    @property
    def is_machine_specific(self) -> bool:
        """True for an absolute path: it must not reach a committed file."""
        return self.path.startswith("/")
