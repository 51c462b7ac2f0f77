"""Leftovers of earlier runs, on the engine and in the project: find and remove them.

Only things with envgen's labels or names and with this project's name; nothing of a profile whose
name has containers of another folder.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from envgen import files
from envgen.app.images import BEFORE
from envgen.app.session import Candidate
from envgen.app.upgrade import journal
from envgen.deployment import Deployment
from envgen.engine.client import Engine
from envgen.engine.values import Container
from envgen.errors import EnvgenError, RefusedError
from envgen.lock.servers import seconds
from envgen.profile.model import Project
from envgen.text import reason_of, short_id

STATE = ".envgen"  # the project's folder of files.state_dir
LOGS_KEPT = 20
CRASHES_KEPT = 5
RECORDS_KEPT = 40  # two files for each image
UNUSED = 30 * 86400.0  # seconds that the way back is kept for


@dataclass(frozen=True)
class Item:
    """A leftover. ``remove`` returns why it could not be removed, or "" or None."""

    kind: str  # container, image, log, crash or record
    name: str
    bytes: int
    why: str
    remove: Callable[[], str | None] = field(repr=False, compare=False)


def find(engine: Engine, project: Project) -> Iterator[Item]:
    """All leftovers."""
    foreign = held_elsewhere(engine, project)
    left = engine.leftovers()
    for container in left:
        removal = partial(engine.remove_container, container.id)
        yield Item("container", container.name, 0, container.reason, removal)
    ids = {container.id for container in left}
    containers = [container for container in engine.containers(all=True) if container.id not in ids]
    yield from _images(engine, project, containers, foreign)
    yield from _old(project.root, "log", "logs", LOGS_KEPT)
    yield from _old(project.root, "crash", "crash", CRASHES_KEPT)
    yield from _old(project.root, "record", "history", RECORDS_KEPT)


def held_elsewhere(engine: Engine, project: Project) -> dict[str, Path]:
    """Profile -> the other folder that has containers under its name."""
    found = {}
    for name, profile in project.profiles.items():
        deployment = Deployment(profile, project.root).with_cached(engine=engine)
        other = deployment.other_folder()
        if other is not None:
            found[name] = other
    return found


def remove(items: Sequence[Item]) -> list[str]:
    """Remove items in order: containers first, as they hold images. Returns why each
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
    """Images of earlier builds and of upgrades that were not kept, which no container uses. The
    image before stays for a month, because it is the way back.
    """
    used = {container.image_id for container in containers}
    names = [profile.image_name for profile in project.profiles.values()]
    before, candidates = ({name + end for name in names} for end in (BEFORE, Candidate.tag))
    alone = dict[str, int]()
    for image in engine.images(f"dev.envgen.project={project.name}"):
        profile = image.labels.get("dev.envgen.profile", "")
        unused = time.time() - seconds(image.tagged)
        tags = set(image.repo_tags)
        is_way_back = bool(tags & before) and unused < UNUSED
        is_tried = bool(tags & candidates) and journal.pending(project.root, profile) is not None
        if image.id in used or profile in foreign or tags - before - candidates:
            continue
        if is_way_back or is_tried:
            continue
        why = f"an earlier build of profile {profile}"
        alone = alone or engine.disk()[0]
        bytes_ = alone.get(image.id, image.size)
        yield Item("image", short_id(image.id), bytes_, why, partial(engine.remove_image, image.id))


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
