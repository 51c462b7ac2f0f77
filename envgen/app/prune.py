"""Leftovers of earlier runs, on the engine and in the project: find and remove them.

Only things with envgen's labels or names and with this project's name; nothing of a profile whose
name has containers of another folder.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

from envgen import files
from envgen.app.images import BEFORE
from envgen.app.session import Candidate
from envgen.app.upgrade import journal
from envgen.deployment import Deployment
from envgen.engine.client import Engine
from envgen.engine.owner import FOLDER, same
from envgen.engine.values import Container
from envgen.errors import EnvgenError, RefusedError
from envgen.lock.servers import seconds
from envgen.profile.caches import HUGGINGFACE
from envgen.profile.model import Project
from envgen.render.environment import overlay_volume
from envgen.text import reason_of, short_id

STATE = ".envgen"  # the project's folder of files.state_dir
LOGS_KEPT = 20
CRASHES_KEPT = 5
RECORDS_KEPT = 40  # two files for each image
UNUSED = 30 * 86400.0  # seconds that the way back is kept for
BROKEN_OFF = 7 * 86400.0  # seconds after which nobody goes on with a download


@dataclass(frozen=True)
class Item:
    """A leftover. ``remove`` returns why it could not be removed, or "" or None."""

    kind: str  # container, image, volume, trial, download, log, crash or record
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
    # What removing an image or a volume alone frees: the engine measures its volumes for it.
    sizes = cache(lambda: engine.disk()[0])
    ways = dict[str, bool]()
    for name, profile in project.profiles.items():
        before = engine.image(profile.image_name + BEFORE)
        ways[name] = before is not None and _age(before.tagged) < UNUSED
    yield from _images(engine, project, containers, foreign, sizes)
    yield from _volumes(engine, project, containers, {*foreign, *filter(ways.get, ways)}, sizes)
    yield from _trials(project)
    if engine.info().local:
        yield from _downloads(project)
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
    engine: Engine,
    project: Project,
    containers: Sequence[Container],
    foreign: Mapping[str, Path],
    sizes: Callable[[], Mapping[str, int]],
) -> Iterator[Item]:
    """Images of earlier builds and of upgrades that were not kept, which no container uses. The
    image before stays for a month, because it is the way back.
    """
    used = {container.image_id for container in containers}
    names = [profile.image_name for profile in project.profiles.values()]
    before, candidates = ({name + end for name in names} for end in (BEFORE, Candidate.tag))
    for image in engine.images(f"dev.envgen.project={project.name}"):
        profile = image.labels.get("dev.envgen.profile", "")
        unused = _age(image.tagged)
        tags = set(image.repo_tags)
        is_way_back = bool(tags & before) and unused < UNUSED
        is_tried = bool(tags & candidates) and journal.pending(project.root, profile) is not None
        is_tried = is_tried and not _is_forgotten(project.root, profile)
        if image.id in used or profile in foreign or tags - before - candidates:
            continue
        if is_way_back or is_tried:
            continue
        why = f"an earlier build of profile {profile}"
        bytes_ = sizes().get(image.id, image.size)
        yield Item("image", short_id(image.id), bytes_, why, partial(engine.remove_image, image.id))


def _age(when: str) -> float:
    """Seconds since a time of the engine; 0 where it has none."""
    return time.time() - seconds(when) if when else 0.0


_KEYED = re.compile(r"-(?:cache-\w+|env)-[0-9a-f]{12}")  # what follows the Compose project's name


def _volumes(
    engine: Engine,
    project: Project,
    containers: Sequence[Container],
    kept: Collection[str],
    sizes: Callable[[], Mapping[str, int]],
) -> Iterator[Item]:
    """Caches and overlays of earlier releases, a month old, that this folder made and no container
    has. ``kept``: profiles whose way back would miss theirs, or that another folder has.
    """
    used = {mount.source for container in containers for mount in container.mounts}
    for name, profile in project.profiles.items():
        old = [] if name in kept else _old_volumes(engine, profile.compose_name, project.root)
        if not old:
            continue
        deployment = Deployment(profile, project.root).with_cached(engine=engine)
        with suppress(
            EnvgenError
        ):  # such as a lock that can't be read: what is in use is not known
            current = {mount.source for mount in deployment.caches.values()}
            for volume in sorted({*old} - used - current - {overlay_volume(profile)}):
                why = f"an earlier build of profile {name}"
                removal = partial(engine.remove_volume, volume)
                yield Item("volume", volume, sizes().get(volume, 0), why, removal)


def _old_volumes(engine: Engine, head: str, root: Path) -> list[str]:
    """The volumes of a Compose project with a key in their names that this folder made long ago."""
    old = list[str]()
    for volume, made in engine.volumes(project=head).items():
        is_keyed = volume.startswith(head) and _KEYED.fullmatch(volume[len(head) :])
        if not is_keyed or _age(made) <= UNUSED:
            continue
        folder = engine.volume_labels(volume).get(FOLDER)
        if folder and same(Path(folder), root):
            old.append(volume)
    return old


# In the project


def _is_forgotten(root: Path, profile: str) -> bool:
    """Whether a trial was broken off a month ago."""
    with suppress(OSError):
        began = (journal.folder_of(root, profile) / journal.TRIAL).stat().st_mtime
        return time.time() - began > UNUSED and journal.abandoned(root, profile)
    return False


def _trials(project: Project) -> Iterator[Item]:
    """Trials of an upgrade that were broken off."""
    for name in project.profiles:
        if _is_forgotten(project.root, name):
            removal = partial(journal.forget, project.root, name)
            shown = f"{STATE}/{journal.FOLDER}/{name}"
            yield Item("trial", shown, 0, "an upgrade was broken off a month ago", removal)


def _downloads(project: Project) -> Iterator[Item]:
    """Parts of downloads of the project's models that nothing has written to for a week."""
    found = dict[Path, Item]()
    for profile in project.profiles.values():
        weights = profile.caches.get(HUGGINGFACE.name)
        if weights is None or weights.host is None:
            continue
        hub = (project.root / Path(weights.host.path).expanduser()).resolve() / "hub"
        for model in [model for one in profile.services.values() for model in one.models]:
            blobs = hub / f"models--{model.repo.replace('/', '--')}" / "blobs"
            for path in blobs.glob("*.incomplete"):
                with suppress(OSError):
                    status = path.lstat()
                    if stat.S_ISREG(status.st_mode) and time.time() - status.st_mtime > BROKEN_OFF:
                        why = f"a download of {model.repo} that was broken off"
                        removal = partial(path.unlink, missing_ok=True)
                        found[path] = Item("download", str(path), status.st_size, why, removal)
    yield from found.values()


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
