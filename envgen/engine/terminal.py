"""Run a program in a container on our own terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

from envgen.engine import process
from envgen.engine.endpoint import Endpoint
from envgen.errors import EngineError


def attach(
    endpoint: Endpoint, container_id: str, argv: Sequence[str], *, options: Sequence[str] = (), tty: bool = True
) -> int:
    """``docker exec`` with our stdin, stdout and stderr; returns the program's own exit code."""
    program = shutil.which("docker")
    if program is None:
        raise EngineError("the program `docker` is not on PATH", hint="install Docker's command line (docker-ce-cli)")
    # A terminal only where both ends are one: with -t Docker mixes stderr into stdout and rewrites line ends.
    terminal = ["--tty"] if tty and sys.stdin.isatty() and sys.stdout.isatty() else []
    words = [program, "exec", "--interactive", *terminal, *options, container_id, *argv]
    return process.interactive(words, env=endpoint.environment)
