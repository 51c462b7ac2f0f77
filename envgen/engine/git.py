"""git through the one door: without the user's configuration, hooks or language, and never asking for a password."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envgen.engine import process
from envgen.errors import EnvgenError

_CLEAN = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_AUTHOR_NAME": "envgen",
    "GIT_AUTHOR_EMAIL": "envgen@localhost",
    "GIT_AUTHOR_DATE": "2000-01-01T00:00:00+0000",
    "GIT_COMMITTER_NAME": "envgen",
    "GIT_COMMITTER_EMAIL": "envgen@localhost",
    "GIT_COMMITTER_DATE": "2000-01-01T00:00:00+0000",
    "LC_ALL": "C",
}
# A user's own settings for how to reach a server stay; what names another repository than the one asked for goes.
_KEPT = ("GIT_SSL_", "GIT_SSH", "GIT_PROXY", "GIT_ASKPASS", "GIT_HTTP_")


@dataclass(frozen=True)
class Answer:
    """How a git command ended."""

    code: int
    stdout: bytes
    stderr: str

    @property
    def text(self) -> str:
        """What it printed, as text without the last newline."""
        return self.stdout.decode("utf-8", "surrogateescape").rstrip("\n")


def git(
    arguments: Sequence[str],
    *,
    cwd: Path,
    stdin: bytes = b"",
    env: Mapping[str, str] = {},
    check: bool = True,
    timeout: float = 120,
) -> Answer:
    """Run ``git ARGUMENTS`` in ``cwd``. With ``check`` a failure raises an ``EnvgenError`` with git's own words."""
    foreign = [name for name in os.environ if name.startswith("GIT_") and not name.startswith(_KEPT)]
    drop = [word for name in foreign for word in ("-u", name)]
    options = [
        "-c",
        "safe.directory=*",
        "-c",
        "gc.auto=0",
        "-c",
        "core.hooksPath=/dev/null",
        "-c",
        "core.autocrlf=false",
    ]
    done = process.run(
        [*(["env", *drop] if drop else []), "git", *options, *arguments],
        stdin=stdin,
        env={**_CLEAN, "GIT_CEILING_DIRECTORIES": str(cwd.parent), **env},
        cwd=cwd,
        timeout=timeout,
        check=False,
    )
    stderr = done.stderr.decode("utf-8", "replace")
    if check and done.code:
        last = stderr.strip().splitlines()[-3:] or [f"exit code {done.code}"]
        raise EnvgenError(f"git {arguments[0]} failed: {' / '.join(last)}")
    return Answer(done.code, done.stdout, stderr)
