"""Docker Compose v2, by its own program: which files, which folder, which variables; nothing else is decided here."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from envgen.engine import process
from envgen.engine.endpoint import Endpoint, plugin_argv
from envgen.errors import EngineError


@dataclass(frozen=True)
class Compose:
    """One Compose project: rendered files, the folder that relative paths start from, and variables of this machine."""

    endpoint: Endpoint
    files: Sequence[Path]
    folder: Path
    env: Mapping[str, str] = field(default_factory=dict)

    def argv(self, *words: str) -> list[str]:
        """The whole command for ``words``, such as ``up --detach serve``."""
        files = [part for file in self.files for part in ("-f", str(file))]
        return [*plugin_argv("compose"), "--project-directory", str(self.folder), *files, *words]

    @property
    def environment(self) -> dict[str, str]:
        """What the program gets besides our own environment. A `.env` file beside the project is not read."""
        return {**self.endpoint.environment, "COMPOSE_DISABLE_ENV_FILE": "1", **self.env}

    def run(self, *words: str, timeout: float | None = 600, check: bool = True) -> process.Completed:
        """Run and collect. ProcessError when it fails and ``check``."""
        return process.run(self.argv(*words), env=self.environment, timeout=timeout, check=check)

    def stream(self, *words: str, on_line: Callable[[str], None]) -> process.Completed:
        """Run, handing over every line of its progress as it comes."""
        return process.stream(
            self.argv(*words),
            lambda _channel, line: on_line(line.decode(errors="replace")),
            env={**self.environment, "COMPOSE_PROGRESS": "plain"},
        )

    def interactive(self, *words: str) -> int:
        """Run on our own terminal; returns its exit code."""
        return process.interactive(self.argv(*words), env=self.environment)


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
