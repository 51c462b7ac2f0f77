"""Run a program in a container on our own terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence

from envgen.engine import process
from envgen.engine.endpoint import Endpoint
from envgen.errors import EngineError


def attach(
    endpoint: Endpoint, container_id: str, argv: Sequence[str], *, options: Sequence[str] = (), tty: bool = True
) -> int:
    """``docker exec`` with our stdin, stdout and stderr; returns the program's own exit code."""
    # A terminal only where both ends are one: with -t Docker mixes stderr into stdout and rewrites line ends.
    terminal = ["--tty"] if tty and sys.stdin.isatty() and sys.stdout.isatty() else []
    words = [docker_program(), "exec", "--interactive", *terminal, *options, container_id, *argv]
    return process.interactive(words, env=endpoint.environment)


def run_shell(endpoint: Endpoint, image: str, labels: Mapping[str, str]) -> int:
    """A shell in a new container of ``image`` on our own terminal, removed when it ends; the shell's exit code."""
    marks = [f"--label={name}={value}" for name, value in labels.items()]
    shell = "if command -v bash >/dev/null; then exec bash; else exec sh; fi"
    words = [docker_program(), "run", "--rm", "--interactive", "--tty", "--init", *marks, "--entrypoint=sh", image]
    return process.interactive([*words, "-c", shell], env=endpoint.environment)


def docker_program() -> str:
    """Docker's own program, which `exec` on a terminal and `pull` with the user's logins need. EngineError without."""
    program = shutil.which("docker")
    if program is None:
        raise EngineError("the program `docker` is not on PATH", hint="install Docker's command line (docker-ce-cli)")
    return program
