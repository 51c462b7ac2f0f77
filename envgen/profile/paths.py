"""Text that every rendered language can carry, and the two kinds of paths. ``values.py`` offers them with the rest."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

# Docker, Compose, YAML and every shell treat these as structure; a value never needs them.
_CONTROL = r"[\x00-\x1f\x7f]"


def plain_text(text: str) -> str:
    """Return ``text`` if it can be carried by a Dockerfile, YAML and a shell alike; else raise ``ValueError``.

    Control characters (newline, NUL, tab, ...) and lone surrogates are refused: a Dockerfile has no way to write them.
    """
    if text.isprintable():  # the common case, without a regular expression
        return text
    found = re.search(_CONTROL, text)
    if found:
        raise ValueError(f"contains the control character {found.group()!r}, which no Dockerfile can carry")
    if any(0xD800 <= ord(c) <= 0xDFFF for c in text):
        raise ValueError("contains a lone surrogate, which is not text")
    return text


@dataclass(frozen=True)
class ContainerPath:
    """An absolute, normalised POSIX path inside the container."""

    path: str

    PATTERN: ClassVar[str] = r"^/(?!([^/]*/)*\.\.(/|$))[^:\x00-\x1f\x7f]*$"
    EXAMPLE: ClassVar[str] = "/workspace/vllm"

    @classmethod
    def parse(cls, text: str) -> ContainerPath:
        plain_text(text)
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
        plain_text(text)
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
