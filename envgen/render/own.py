"""What a profile takes of the project's own folder into its image: which files, within limits."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from envgen.errors import EnvgenError, RefusedError
from envgen.profile.model import Profile
from envgen.profile.values import own_path

LEFT_OUT = (".git", ".envgen", "__pycache__")
MOST, LARGEST = 20_000, 256 << 20
_NAME = re.compile(r"[A-Za-z0-9._@+ -]+")


def paths_of(profile: Profile) -> tuple[str, ...]:
    """The files and folders that it names."""
    folders = [own_path(s.origin.folder.path) for s in profile.sources.values() if s.origin.folder is not None]
    return tuple(sorted({*folders, *profile.dockerfile_extra.sources}))


def files_of(profile: Profile, root: Path | None) -> tuple[str, ...]:
    """Every file below them, relative to the project; what git and Python leave there is left out."""
    paths = paths_of(profile)
    if paths and root is None:
        raise EnvgenError(
            f"profile {profile.name} copies files of the project; rendering it needs the project's folder"
        )
    found, size = list[str](), 0
    for path in paths:
        assert root is not None
        for file in [path] if (root / path).is_file() else _below(root, path):
            if not (root / file).resolve().is_relative_to(root.resolve()):
                raise RefusedError(f"{file} is a link that leaves the project", hint="copy it here")
            size += (root / file).stat().st_size
            found.append(file)
            if len(found) > MOST or size > LARGEST:
                message = f"{path} holds more than {MOST} files or {LARGEST >> 20} MiB"
                raise RefusedError(message, hint="name the part of it that the image needs")
    return tuple(sorted(set(found)))


def _below(root: Path, path: str) -> Iterable[str]:
    for folder, folders, names in os.walk(root / path):
        folders[:] = sorted(name for name in folders if name not in LEFT_OUT)
        for name in sorted(names):
            place = Path(folder, name)
            if name.endswith(".pyc") or not place.is_file():
                continue
            if not _NAME.fullmatch(name):
                raise RefusedError(f"{place.relative_to(root)} has characters that no build can have", hint="rename it")
            yield place.relative_to(root).as_posix()
