"""What this room needs of git. The caller brings the program; nothing here starts one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol


class GitAnswer(Protocol):
    """How a git command ended."""

    @property
    def code(self) -> int:
        """The exit code."""
        ...

    @property
    def stdout(self) -> bytes:
        """What it printed."""
        ...

    @property
    def stderr(self) -> str:
        """What it complained about."""
        ...

    @property
    def text(self) -> str:
        """What it printed, as text without the last newline."""
        ...


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
