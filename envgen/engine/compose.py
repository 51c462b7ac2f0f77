"""Docker Compose v2: runs its program with a project's files, folder and variables."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from envgen import files
from envgen.binding import JsonObject
from envgen.engine import process
from envgen.engine.endpoint import Endpoint, docker_program, plugin_argv
from envgen.engine.values import ExecResult
from envgen.errors import RefusedError


@dataclass(frozen=True)
class Compose:
    """One Compose project: rendered files, the folder that relative paths start from, and variables
    of this machine.

    Without ``files``, it is what the engine has under the ``name``.
    """

    endpoint: Endpoint
    files: Sequence[Path]
    folder: Path
    name: str
    env: Mapping[str, str] = field(default_factory=dict)

    def argv(self, *words: str) -> list[str]:
        """The whole command for ``words``, such as ``up --detach serve``."""
        files = [part for file in self.files for part in ("-f", str(file))]
        project = ["--project-name", self.name, "--project-directory", str(self.folder)]
        return [*plugin_argv("compose"), *project, *files, *words]

    @property
    def environment(self) -> dict[str, str]:
        """Variables for the program, besides our own environment. Compose reads no `.env` file."""
        return {**self.endpoint.environment, "COMPOSE_DISABLE_ENV_FILE": "1", **self.env}

    @property
    def place(self) -> Path | None:
        """Where it runs. Compose makes a URL of its current folder, and fails for one with a `%`
        or a newline in its name.
        """
        paths = (self.folder, *self.files)
        return Path("/") if all(path.is_absolute() for path in paths) else None

    def run(self, *words: str, timeout: float | None = 600, check: bool = True) -> ExecResult:
        """Run, and return the output. ProcessError where it fails and ``check`` is set."""
        argv = self.argv(*words)
        return process.run(argv, env=self.environment, cwd=self.place, timeout=timeout, check=check)

    @cached_property
    def document(self) -> JsonObject:
        """The document of all files together, all services included, as Compose understands it.
        ProcessError.
        """
        done = self.run("--profile", "*", "config", "--format", "json")
        document: JsonObject = json.loads(
            done.stdout.replace(b"$$", b"$")
        )  # Compose doubles each `$`
        return document

    def service(self, name: str) -> JsonObject:
        """``document`` of one service; {} where the files have none of that name."""
        return (self.document.get("services") or {}).get(name) or {}

    def digests(self) -> Mapping[str, str]:
        """Service -> the digest of its settings, which labels its containers; {} where Compose
        fails.
        """
        done = self.run("--profile", "*", "config", "--hash", "*", timeout=10, check=False)
        hashes = {}
        for line in done.stdout.decode(errors="replace").splitlines():
            words = line.split()
            if len(words) == 2 and not done.code:
                service, digest = words
                hashes[service] = digest
        return hashes

    def stream(
        self, *words: str, on_line: Callable[[str], None], timeout: float | None = None
    ) -> ExecResult:
        """Run; ``on_line`` gets each line of its progress as it comes."""
        return process.run(
            self.argv(*words),
            env={**self.environment, "COMPOSE_PROGRESS": "plain"},
            cwd=self.place,
            timeout=timeout,
            check=False,
            on_line=on_line,
        )

    def interactive(self, *words: str) -> int:
        """Run on our own terminal; returns its exit code."""
        return process.interactive(self.argv(*words), self.environment)


def attach(
    endpoint: Endpoint,
    container_id: str,
    argv: Sequence[str],
    *,
    options: Sequence[str] = (),
    tty: bool = True,
) -> int:
    """``docker exec`` with our stdin, stdout and stderr; returns the program's own exit code."""
    # A terminal only where stdin and stdout are: with -t Docker mixes stderr into stdout and
    # rewrites line ends.
    terminal = ["--tty"] if tty and sys.stdin.isatty() and sys.stdout.isatty() else []
    words = [docker_program(), "exec", "--interactive", *terminal, *options, container_id, *argv]
    return process.interactive(words, endpoint.environment)


# A `.env` file, read by Compose itself. No value of it is printed, not even in an error.

DOTENV = ".env"
_LARGEST = 64 << 10
_ASKED = "x-asked"
# Variables that programs on this machine obey, such as Docker's own: a project's file must not set
# them.
_OF_PROGRAMS = re.compile(
    r"(COMPOSE|DOCKER|BUILDX|BUILDKIT|GIT|SSH|LD|DYLD|ENVGEN|XDG)_.*|PYTHON.*|PATH|HOME|IFS|(BASH_)?ENV"
)


def read_dotenv(path: Path, names: Sequence[str]) -> Mapping[str, str]:
    """The values of these names in the file, without empty ones; {} for a folder (a virtual
    environment of that name).

    RefusedError where the file may not be read, or Compose does not understand it. EngineError
    without Compose.
    """
    wanted = [name for name in names if not _OF_PROGRAMS.fullmatch(name)]
    if not wanted or path.is_dir() or not (path.exists() or path.is_symlink()):
        return {}
    if not files.is_ours(path, root=True):
        owner = path.lstat().st_uid
        raise RefusedError(
            f"{path} belongs to another user (uid {owner})",
            hint=f"if you trust it: sudo chown $USER {path}",
        )
    try:
        content = files.read(path, limit=_LARGEST, follow=False)
    except OSError as error:
        raise RefusedError(
            f"{path} cannot be read: {error.strerror or error}", hint="make it a small plain file"
        ) from None
    with files.Scratch("compose") as folder:
        copy = Path(folder) / DOTENV
        asked = Path(folder) / "ask.json"
        copy.write_bytes(content)
        asked.write_text(
            json.dumps(
                {"name": "ask", "services": {}, _ASKED: {name: f"${{{name}-}}" for name in wanted}}
            )
        )
        done = process.run(
            [
                *plugin_argv("compose"),
                f"--env-file={copy}",
                f"--file={asked}",
                "config",
                "--format=json",
            ],
            env={"COMPOSE_DISABLE_ENV_FILE": "1"},
            timeout=20,
            check=False,
        )
    if done.code:
        line = re.search(rb"line (\d+)", done.stderr)
        where = f", line {line[1].decode()}" if line else ""
        raise RefusedError(
            f"Compose cannot read {path}{where}", hint="write NAME=value, one per line"
        )
    values = json.loads(done.stdout)[_ASKED]
    # Compose prints a Compose file, in which $$ is a dollar.
    return {name: value.replace("$$", "$") for name, value in values.items() if value}
