"""A `.env` file, read as Compose reads it: by Compose itself. No value of it is printed, not even in an error.

The file is a stranger's: at most 64 KiB, no link, and only names that were asked for are taken from it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from envgen import files
from envgen.engine import process
from envgen.engine.endpoint import plugin_argv
from envgen.errors import RefusedError

NAME = ".env"
_LARGEST = 64 << 10
_ASKED = "x-asked"
# Variables that programs on this machine obey, Docker's own among them: a file in a project decides none of them.
_OF_PROGRAMS = re.compile(
    r"(COMPOSE|DOCKER|BUILDX|BUILDKIT|GIT|SSH|LD|DYLD|ENVGEN|XDG)_.*|PYTHON.*|PATH|HOME|IFS|(BASH_)?ENV"
)


def read(path: Path, names: Sequence[str]) -> Mapping[str, str]:
    """The values that the file gives these names; those that it lacks, or gives no text, are left out.

    RefusedError where the file may not be read or is not one that Compose understands. A folder (a virtual environment
    of that name) is not one. EngineError where there is no Compose to ask.
    """
    wanted = [name for name in names if not _OF_PROGRAMS.fullmatch(name)]
    if not wanted or path.is_dir() or not (path.exists() or path.is_symlink()):
        return {}
    if not files.is_ours(path, root=True):
        owner = path.lstat().st_uid
        raise RefusedError(
            f"{path} belongs to another user (uid {owner})", hint=f"if you trust it: sudo chown $USER {path}"
        )
    try:
        content = files.read(path, limit=_LARGEST, follow=False)
    except OSError as error:
        raise RefusedError(
            f"{path} is not read: {error.strerror or error}", hint="make it a small plain file"
        ) from None
    with files.Scratch("engine") as folder:
        copy, asked = Path(folder) / NAME, Path(folder) / "ask.json"
        copy.write_bytes(content)
        asked.write_text(json.dumps({"name": "ask", "services": {}, _ASKED: {one: f"${{{one}-}}" for one in wanted}}))
        done = process.run(
            [*plugin_argv("compose"), f"--env-file={copy}", f"--file={asked}", "config", "--format=json"],
            env={"COMPOSE_DISABLE_ENV_FILE": "1"}, timeout=20, check=False,
        )  # fmt: skip
    if done.code:
        line = re.search(rb"line (\d+)", done.stderr)
        where = f" in line {line[1].decode()}" if line else ""
        raise RefusedError(f"Compose cannot read {path}{where}", hint="it takes NAME=value, one a line")
    found = json.loads(done.stdout)[_ASKED]
    # What Compose prints is a Compose file again, in which $$ is a dollar.
    return {name: value.replace("$$", "$") for name, value in found.items() if value}
