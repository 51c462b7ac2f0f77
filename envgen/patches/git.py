"""What this room needs of git. The caller brings the program; nothing here starts one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class GitAnswer:
    """How a git command ended."""

    code: int
    stdout: bytes
    stderr: str

    @property
    def text(self) -> str:
        """What it printed, as text without the last newline."""
        return self.stdout.decode("utf-8", "surrogateescape").rstrip("\n")


class Git(Protocol):
    """Runs git, apart from the user's configuration and in plain English."""

    def __call__(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path,
        stdin: bytes = b"",
        env: Mapping[str, str] = ...,
        check: bool = True,
        timeout: float = 120,
    ) -> GitAnswer:
        """Run ``git ARGUMENTS`` in ``cwd``. With ``check`` a failure raises an ``EnvgenError``."""
        ...
