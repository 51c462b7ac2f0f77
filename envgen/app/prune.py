"""Leftovers of earlier runs, on the engine and in the project: find and remove them.

Only things with envgen's labels or names and with this project's name; nothing of a profile whose
name has containers of another folder.
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
UNUSED = 30 * 86400.0  # seconds; a namespace used since then stays: the profile may need it again
_DAY = 86400.0


@dataclass(frozen=True)
class Item:
    """A leftover. ``remove`` returns why it could not be removed, or "" or None."""

    kind: str  # container, network, image, overlay, cache, stage, temporary, log or crash
    name: str
    bytes: int
    why: str
    remove: Callable[[], str | None] = field(repr=False, compare=False)


def find(engine: Engine, project: Project, variants: Sequence[Profile] = ()) -> Iterator[Item]:
    """All leftovers. ``variants``: the profiles with their variants, which also count as users."""
    profiles = [*project.profiles.values(), *variants]
    foreign = held_elsewhere(engine, project)
    left = engine.leftovers()
    for container in left:
        removal = partial(engine.remove_container, container.id)
        yield Item("container", container.name, 0, container.reason, removal)
    ids = {container.id for container in left}
    containers = [container for container in engine.containers(all=True) if container.id not in ids]
    yield from _images(engine, project, containers, foreign)
    yield from _overlays(engine, project, profiles, containers, foreign)
    yield from _caches(engine, project, profiles, foreign)
    yield from _old(project.root, "log", "logs", LOGS_KEPT)
    yield from _old(project.root, "crash", "crash", CRASHES_KEPT)


def held_elsewhere(engine: Engine, project: Project) -> dict[str, Path]:
    """Profile -> the other folder that has containers under its name."""
    folders = {
        name: _at(engine, project, profile).other_folder()
        for name, profile in project.profiles.items()
    }
    return {name: other for name, other in folders.items() if other is not None}


def _at(engine: Engine, project: Project, profile: Profile) -> Deployment:
    return Deployment(profile, project.root).with_cached(engine=engine)


def remove(items: Sequence[Item]) -> list[str]:
    """Remove items in order: containers first, as they hold images and volumes. Returns why each
    stayed, or "".
    """
    reasons = []
    for item in items:
        try:
            reasons.append(item.remove() or "")
        except (EnvgenError, OSError) as error:
            reasons.append(reason_of(error))
    return reasons


# On the engine


def _images(
    engine: Engine, project: Project, containers: Sequence[Container], foreign: Mapping[str, Path]
) -> Iterator[Item]:
    """Untagged images of earlier builds that no container uses."""
    used = {container.image_id for container in containers}
    for image in engine.dangling(f"dev.envgen.project={project.name}"):
        profile = image.labels.get("dev.envgen.profile", "")
        if image.id in used or profile in foreign:
            continue
        why = f"an earlier build of profile {profile}"
        yield Item(
            "image", short_id(image.id), image.size, why, partial(engine.remove_image, image.id)
        )


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
            overlay = re.compile(f"{re.escape(profile.compose_name)}-env-[0-9a-f]{{12}}")
            volumes = engine.volumes(project=profile.compose_name)
            deployment = _at(engine, project, profile)
            stale = [
                volume for volume in volumes if volume not in kept and overlay.fullmatch(volume)
            ]
            stale = [volume for volume in stale if deployment.volume_elsewhere(volume) is None]
            sizes = engine.volume_sizes() if stale else {}
            why = f"stale editable installs of profile {profile.name}"
            for volume in stale:
                yield Item(
                    "overlay",
                    volume,
                    sizes.get(volume, 0),
                    why,
                    partial(engine.remove_volume, volume),
                )


def _caches(
    engine: Engine, project: Project, profiles: Sequence[Profile], foreign: Mapping[str, Path]
) -> Iterator[Item]:
    """Namespaces that no profile and no container uses, unused for a month; and leftovers of killed
    clears.

    Other projects may share a host folder: their uses count as well.
    """
    keys = {_at(engine, project, profile).cache_key for profile in profiles}
    for profile in project.profiles.values():
        cache = JitCache(_at(engine, project, profile))
        if locking.CACHE not in profile.caches or profile.name in foreign:
            continue
        with contextlib.suppress(EngineError):  # without an image, no agent can run
            if left := space.leftovers(cache):
                yield Item("stage", *left[:2], "of an interrupted clear", left[2])
        volumes = engine.volumes(project=profile.compose_name)
        owned = {volume for volume in volumes if cache.deployment.volume_elsewhere(volume) is None}
        with contextlib.suppress(EngineError):
            for place in space.spaces(cache):
                unused = time.time() - place.used
                ours = place.source in owned or place.kind == "bind"
                if (
                    ours
                    and unused >= UNUSED
                    and not (place.current or place.users or place.key in keys)
                ):
                    why = f"unused for {int(unused / _DAY)} days"
                    yield Item(
                        "cache", place.source, place.bytes, why, partial(space.remove, cache, place)
                    )


# In the project


def _old(root: Path, kind: str, folder: str, kept: int) -> Iterator[Item]:
    """All but the newest ``kept`` files, by their time."""
    parts = (STATE, folder)
    try:
        with os.scandir(files.folder(root.joinpath(*parts), root, create=False)) as entries:
            statuses = [
                (entry.stat(follow_symlinks=False), entry.name)
                for entry in entries
                if entry.is_file(follow_symlinks=False) and not entry.name.startswith(".")
            ]
    except (OSError, RefusedError):
        return
    for status, name in sorted(statuses, key=lambda entry: (entry[0].st_mtime_ns, entry[1]))[
        :-kept
    ]:
        why = f"not one of the newest {kept}"
        yield Item(
            kind,
            "/".join((*parts, name)),
            status.st_size,
            why,
            partial(_remove_file, root, parts, name),
        )


def _remove_file(root: Path, parts: Sequence[str], name: str) -> str:
    (files.folder(root.joinpath(*parts), root, create=False) / name).unlink(missing_ok=True)
    return ""
