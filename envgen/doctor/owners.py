"""Files of root's in checkouts and in cache folders of this machine: what containers that ran as root left there."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from envgen.engine.owner import caller
from envgen.profile.model import Profile
from envgen.render.environment import cache_variable, checkout_variable, compose_environment

MOST = 50_000  # entries of one folder that are looked at, those near the top first


@dataclass(frozen=True)
class Foreign:
    """What root owns below one folder. ``name``: the source or the cache; ``examples``: some of the paths."""

    name: str
    folder: str
    count: int
    examples: tuple[str, ...]


def foreign(profile: Profile, root: Path) -> tuple[Foreign, ...]:
    """The folders of the profile with files of root's in them; none are looked for where envgen runs as root."""
    machine = compose_environment(profile, root)
    wanted = {name: checkout_variable(name) for name in profile.mounted_sources}
    wanted |= {f"cache {name}": cache_variable(name) for name, cache in profile.caches.items() if cache.host}
    if caller()[0] == 0:
        return ()
    found = []
    for name, variable in wanted.items():
        folder = machine.get(variable, "")
        paths = of_root(folder) if folder else []
        if paths:
            found.append(Foreign(name, folder, len(paths), tuple(paths[:3])))
    return tuple(found)


def of_root(folder: str, most: int = MOST) -> list[str]:
    """Paths in ``folder`` that belong to root, itself included; links are not followed."""
    try:
        found = [folder] if is_of_root(folder, os.lstat(folder)) else []
    except OSError:
        return []
    folders, seen = deque([folder]), 0
    while folders and seen < most:
        try:
            with os.scandir(folders.popleft()) as entries:
                for entry in entries:
                    seen += 1
                    if is_of_root(entry.path, entry.stat(follow_symlinks=False)):
                        found.append(entry.path)
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
        except OSError:
            continue  # a folder that only root may read has been counted
    return found


def is_of_root(_path: str, found: os.stat_result) -> bool:
    """Whether a path with this stat is root's."""
    return found.st_uid == 0
