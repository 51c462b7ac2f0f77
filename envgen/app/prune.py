"""What runs left behind, on the engine and in the project: found, shown, removed.

Only what carries envgen's labels, or the names that envgen gives, together with this project's name. What goes by the
name of a profile that has containers of another folder is not touched.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from envgen import files
from envgen.deployment import Deployment
from envgen.engine.client import Engine
from envgen.engine.values import Container
from envgen.errors import EngineError, EnvgenError, RefusedError
from envgen.jitcache import space
from envgen.jitcache.service import JitCache
from envgen.profile.model import Profile, Project
from envgen.render import locking
from envgen.render.environment import overlay_volume
from envgen.text import reason_of, short_id

STATE = ".envgen"  # the project's folder of files.state_dir
LOGS_KEPT = 20
CRASHES_KEPT = 5
UNUSED = 30 * 86400.0  # a namespace that was used later stays: a folder of the same name may come back to it
_DAY = 86400.0


@dataclass(frozen=True)
class Item:
    """One thing that can go. ``remove`` returns why it stayed, or nothing."""

    kind: str  # container, network, image, overlay, cache, stage, temporary, log or crash
    name: str
    bytes: int
    why: str
    remove: Callable[[], str | None] = field(repr=False, compare=False)


def find(engine: Engine, project: Project, variants: Sequence[Profile] = ()) -> Iterator[Item]:
    """Everything that can go. ``variants``: the profiles as their variants change them; what they use stays, too."""
    profiles = [*project.profiles.values(), *variants]
    foreign = held_elsewhere(engine, project)
    left = engine.leftovers()
    for one in left:
        yield Item("container", one.name, 0, one.reason, partial(engine.remove_container, one.id))
    ids = {one.id for one in left}
    containers = [one for one in engine.containers(all=True) if one.id not in ids]
    yield from _images(engine, project, containers, foreign)
    yield from _overlays(engine, project, profiles, containers, foreign)
    yield from _caches(engine, project, profiles, foreign)
    yield from _temporaries(project.root)
    yield from _old(project.root, "log", "logs", LOGS_KEPT)
    yield from _old(project.root, "crash", "crash", CRASHES_KEPT)


def held_elsewhere(engine: Engine, project: Project) -> dict[str, Path]:
    """The profiles whose name belongs to another folder, with that folder."""
    found = {name: _at(engine, project, profile).other_folder() for name, profile in project.profiles.items()}
    return {name: other for name, other in found.items() if other is not None}


def _at(engine: Engine, project: Project, profile: Profile) -> Deployment:
    return Deployment(profile, project.root).knowing(engine=engine)


def remove(items: Sequence[Item]) -> list[str]:
    """Remove them in their order: containers first, for they hold images and volumes. Why each stayed; "": it is
    gone."""
    left = []
    for item in items:
        try:
            left.append(item.remove() or "")
        except (EnvgenError, OSError) as error:
            left.append(reason_of(error))
    return left


# On the engine


def _images(
    engine: Engine, project: Project, containers: Sequence[Container], foreign: Mapping[str, Path]
) -> Iterator[Item]:
    """Those without a name that an earlier build of a profile left; not what a container was made of."""
    used = {container.image_id for container in containers}
    for image in engine.dangling(f"dev.envgen.project={project.name}"):
        profile = image.labels.get("dev.envgen.profile", "")
        if image.id in used or profile in foreign:
            continue
        why = f"an earlier build of profile {profile}"
        yield Item("image", short_id(image.id), image.size, why, partial(engine.remove_image, image.id))


def _overlays(
    engine: Engine,
    project: Project,
    profiles: Sequence[Profile],
    containers: Sequence[Container],
    foreign: Mapping[str, Path],
) -> Iterator[Item]:
    """Editable installs for another base image, Python or set of sources than a profile has now."""
    kept = {overlay_volume(profile) for profile in profiles if profile.mounted_sources}
    kept |= {mount.source for container in containers for mount in container.mounts}
    for profile in project.profiles.values():
        if profile.name not in foreign:
            found = [one for one in engine.volumes(project=profile.compose_name) if one not in kept]
            why = f"stale editable installs of profile {profile.name}"
            yield from _volumes(engine, profile.compose_name, found, why)


def _volumes(engine: Engine, name: str, found: Sequence[str], why: str) -> Iterator[Item]:
    """Those of ``found`` that are overlays of ``name``."""
    overlays = [one for one in found if re.fullmatch(f"{re.escape(name)}-env-[0-9a-f]{{12}}", one)]
    sizes = engine.volume_sizes() if overlays else {}
    for volume in overlays:
        yield Item("overlay", volume, sizes.get(volume, 0), why, partial(engine.remove_volume, volume))


def _caches(
    engine: Engine, project: Project, profiles: Sequence[Profile], foreign: Mapping[str, Path]
) -> Iterator[Item]:
    """Namespaces that no profile uses, nor a container, nor anybody for a month; and what killed runs left in others.

    A folder of this machine may be shared by other projects: each use of theirs leaves its time there, too.
    """
    keys = {_at(engine, project, profile).cache_key for profile in profiles}
    for profile in project.profiles.values():
        cache = JitCache(_at(engine, project, profile))
        made = profile.caches.get(locking.CACHE)
        if made is None or profile.name in foreign:
            continue
        with contextlib.suppress(EngineError):  # without an image nothing can be looked into
            if left := space.leftovers(cache):
                yield Item("stage", *left[:2], "of an interrupted clear", left[2])
        owned = set(engine.volumes(project=profile.compose_name))
        with contextlib.suppress(EngineError):
            for one in space.spaces(cache):
                recent = time.time() - one.used < UNUSED
                ours = one.source in owned or one.kind == "bind"
                if ours and not (one.current or one.users or recent or one.key in keys):
                    why = f"no profile uses it, for {int((time.time() - one.used) / _DAY)} days"
                    yield Item("cache", one.source, one.bytes, why, partial(space.remove, cache, one))


# In the project


def _temporaries(root: Path) -> Iterator[Item]:
    """Files that a killed run was about to rename, and its folders."""
    for path in files.leftovers(root):
        name = str(path.relative_to(root) if path.is_relative_to(root) else path)
        yield Item("temporary", name, _size(path), "of an interrupted run", partial(files.remove_leftover, path))


def _old(root: Path, kind: str, folder: str, kept: int) -> Iterator[Item]:
    """All but the newest: by their time, for the names of logs begin with the profile's."""
    parts = (STATE, folder)
    try:  # a folder that is reached through no link
        with files.folder(root.joinpath(*parts), root, create=False) as fd, os.scandir(fd) as entries:
            plain = [one for one in entries if one.is_file(follow_symlinks=False) and not one.name.startswith(".")]
            found = [(one.stat(follow_symlinks=False), one.name) for one in plain]
    except (OSError, RefusedError):
        return
    for status, name in sorted(found, key=lambda entry: (entry[0].st_mtime_ns, entry[1]))[:-kept]:
        why = f"the newest {kept} stay"
        yield Item(kind, "/".join((*parts, name)), status.st_size, why, partial(_remove_file, root, parts, name))


def _remove_file(root: Path, parts: Sequence[str], name: str) -> str:
    with files.folder(root.joinpath(*parts), root, create=False) as fd, contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=fd)
    return ""


def _size(path: Path) -> int:
    total = path.lstat().st_size if path.is_file() else 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_size  # noqa: PTH118
    return total
