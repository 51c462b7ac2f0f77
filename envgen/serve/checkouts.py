"""What a container may not write in a mounted checkout: settings of git, which name programs that the host runs.

A Compose file of its own beside the rendered ones, because it depends on what is on this machine: Compose cannot say
"mount it where it exists".
"""

from __future__ import annotations

import json
import os
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

from envgen import files
from envgen.profile.model import Profile
from envgen.render.environment import checkout_variable, compose_environment

FILE = "compose/checkouts.json"
_MOST = 100  # submodules in one checkout


def guard_file(profile: Profile, root: Path, folder: Path, unmapped: Container[str] = ()) -> Path | None:
    """The Compose file that mounts git's settings read-only, written below ``folder``; None where there are none.

    ``unmapped``: services whose user has to be this machine's, on an engine that changes the numbers of users.
    """
    volumes = list(_volumes(profile, root))
    path = folder / FILE
    services: dict[str, dict[str, Any]] = {name: {"volumes": volumes} for name in profile.services if volumes}
    for name in profile.services:
        if name in unmapped:
            services.setdefault(name, {})["userns_mode"] = "host"
    if not services:
        path.unlink(missing_ok=True)
        return None
    document = {"services": services}
    content = (json.dumps(document, indent=1) + "\n").encode()
    if not path.is_file() or files.read(path) != content:
        files.write(path, content, within=root)
    return path


def _volumes(profile: Profile, root: Path) -> Iterator[dict[str, Any]]:
    environment = compose_environment(profile, root)
    for name, source in profile.mounted_sources.items():
        top, target = Path(environment[checkout_variable(name)]), source.mount.path
        git = top / ".git"
        if git.is_symlink():
            continue  # leads to where the container sees nothing
        if git.is_file():  # a linked worktree, or a submodule: its git directory is not mounted
            yield _bind(git, f"{target}/.git", read_only=True)
        elif git.is_dir():
            kept = _git_dirs(git)
            # Mounts of their own: a folder that only leads to a mount can be renamed to make place for another one.
            ways = {at for folder in kept for at in (folder, *folder.parents) if at.is_relative_to(git)}
            for at in sorted(ways):
                yield _bind(at, f"{target}/{at.relative_to(top).as_posix()}", read_only=False)
            for path in sorted(path for folder in kept for path in _settings(folder)):
                yield _bind(path, f"{target}/{path.relative_to(top).as_posix()}", read_only=True)


def _git_dirs(git: Path) -> list[Path]:
    """A git directory and those of its submodules."""
    found = [git]
    for at, folders, names in os.walk(git / "modules"):
        if "HEAD" in names and "config" in names and len(found) < _MOST:
            found.append(Path(at))
            folders[:] = [name for name in folders if name == "modules"]
    return found


def _settings(folder: Path) -> Iterator[Path]:
    """Configuration and hooks of a git directory."""
    for name in ("config", "config.worktree", "hooks"):
        path = folder / name
        if not path.is_symlink() and (path.is_dir() if name == "hooks" else path.is_file()):
            yield path


def _bind(source: Path, target: str, *, read_only: bool) -> dict[str, Any]:
    volume = {"type": "bind", "source": _literal(str(source)), "target": _literal(target)}
    return {**volume, "read_only": read_only, "bind": {"create_host_path": False}}


def _literal(text: str) -> str:
    return text.replace("$", "$$")
