"""Leftovers of earlier runs, on the engine and in the project: find and remove them.

Only things with envgen's labels or names and with this project's name; nothing of a profile whose
name has containers of another folder.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path

from envgen import files
from envgen.app.images import BEFORE, kept_name
from envgen.app.session import Candidate
from envgen.app.upgrade import journal
from envgen.deployment import Deployment
from envgen.engine import process
from envgen.engine.client import Engine
from envgen.engine.owner import FOLDER, same
from envgen.engine.values import Container, ContainerMount, ExecResult
from envgen.errors import EnvgenError, RefusedError
from envgen.jitcache.place import CACHE, Query
from envgen.jitcache.service import ROOT_USER, JitCache
from envgen.lock.servers import seconds
from envgen.profile.caches import HUGGINGFACE
from envgen.profile.model import Project
from envgen.render.environment import overlay_volume
from envgen.render.locking import places_of
from envgen.render.outputs import RENDER_LABEL
from envgen.text import reason_of, short_id

DAY = 86400.0
UNUSED = 30.0  # days that the way back is kept for
BROKEN_OFF = 7  # days after which nobody goes on with a download
# Kind of file -> its folder, the number of the newest that stay, and days that all others stay.
FILES = {
    "log": ("logs", 20, 7),
    "crash": ("crash", 5, 30),
    "record": ("history", 40, 30),  # two files for each image
}


Run = Callable[[Sequence[str]], ExecResult]


@dataclass(frozen=True)
class Item:
    """A leftover. ``remove`` returns why it could not be removed, or "" or None."""

    kind: str  # container, image, volume, kernels, trial, download, log, crash or record
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
    yield from _images(engine, project, containers, foreign, sizes)
    downloads = list[Item]()  # profiles may share a folder of weights
    kept = []  # what the images of ways back were built from
    for name, profile in project.profiles.items():
        before = engine.image(profile.image_name + BEFORE)
        has_way_back = before is not None and _age(seconds(before.tagged)) < UNUSED
        if before is not None and has_way_back:
            kept.append(kept_name(name, before.labels.get(RENDER_LABEL, "")))
        if _is_forgotten(project.root, name):
            forget = partial(journal.forget, project.root, name)
            shown = f"{files.STATE}/{journal.FOLDER}/{name}"
            yield Item("trial", shown, 0, "an upgrade was broken off a month ago", forget)
        if name in foreign:
            continue
        deployment = Deployment(profile, project.root).with_cached(engine=engine)
        # Such as a lock that can't be read: what is in use is not known.
        with suppress(EnvgenError):
            downloads += _downloads(deployment)
            if not has_way_back:
                yield from _volumes(deployment, containers, sizes)
    yield from dict.fromkeys(downloads)
    for kind in FILES:
        yield from _old(project.root, kind, kept)


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
        tags = set(image.repo_tags)
        is_way_back = bool(tags & before) and _age(seconds(image.tagged)) < UNUSED
        is_tried = bool(tags & candidates) and journal.pending(project.root, profile) is not None
        is_tried = is_tried and not _is_forgotten(project.root, profile)
        if image.id in used or profile in foreign or is_way_back or is_tried:
            continue
        if tags - before - candidates:
            continue
        why = f"an earlier build of profile {profile}"
        bytes_ = sizes().get(image.id, image.size)
        removal = partial(engine.remove_image, image.id)
        yield Item("image", short_id(image.id), bytes_, why, removal)


def _age(at: float) -> float:
    """Days since a time in seconds since 1970; 0 where there is none."""
    return (time.time() - at) / DAY if at else 0.0


_KEYED = re.compile(r"-(?:cache-\w+|env)-[0-9a-f]{12}")  # what follows the Compose project's name


def _volumes(
    deployment: Deployment,
    containers: Sequence[Container],
    sizes: Callable[[], Mapping[str, int]],
) -> Iterator[Item]:
    """Caches and overlays of earlier releases, a month old, that this folder made and no container
    has, and what a cache of several releases holds of earlier ones. The way back would miss both.
    """
    engine = deployment.engine
    profile = deployment.profile
    volumes = engine.volumes(project=profile.compose_name)
    old = [volume for volume, made in volumes.items() if _age(seconds(made)) > UNUSED]
    if not old:
        return
    kernels = deployment.caches.get(CACHE)
    used = {mount.source for container in containers for mount in container.mounts}
    used |= {overlay_volume(profile), *(mount.source for mount in deployment.caches.values())}
    for volume in old:
        folder = engine.volume_labels(volume).get(FOLDER, "/")
        if not same(Path(folder), deployment.root):
            continue
        is_keyed = _KEYED.fullmatch(volume.removeprefix(profile.compose_name))
        if is_keyed and volume not in used:
            why = f"an earlier build of profile {profile.name}"
            removal = partial(engine.remove_volume, volume)
            yield Item("volume", volume, sizes().get(volume, 0), why, removal)
        elif kernels and kernels.source == volume and not is_keyed:
            yield from _kernels(deployment, kernels)


def _in_volume(deployment: Deployment, volume: ContainerMount) -> Run:
    """Runs a program where ``volume`` is ``/`` and its name. EngineError without an image."""
    mounts = [replace(volume, target=f"/{volume.source}")]
    image = deployment.profile.image_name
    return partial(deployment.engine.run_once, image, mounts=mounts, user=ROOT_USER)


def _kernels(deployment: Deployment, volume: ContainerMount) -> Iterator[Item]:
    """Kernels of releases of FlashInfer that nothing has loaded for a month; not those that were
    loaded last. FlashInfer opens the lock of each module that it loads.
    """
    place = f"/{volume.source}"
    where = ["find", place, "-path", f"{place}/[0-9]*/cached_ops/*", "-type", "f"]
    done = _in_volume(deployment, volume)([*where, "-printf", "%T@ %s %P\\0"])
    sizes = dict[str, int]()
    used = dict[str, float]()
    for line in done.stdout.decode("utf-8", "replace").split("\0")[:-1]:
        at, count, path = line.split(" ", 2)
        release = path.partition("/")[0]
        sizes[release] = sizes.get(release, 0) + int(count)
        used[release] = max(used.get(release, 0.0), float(at))
    there = [release for release in sizes if sizes[release]]  # what is cleared leaves empty locks
    last = max(there, key=used.__getitem__, default="")
    for release in there:
        if release == last or _age(used[release]) <= UNUSED:
            continue
        name = f"{volume.source}: {release}"
        why = f"kernels of FlashInfer {release} that nothing has loaded for a month"
        removal = partial(_clear, JitCache(deployment), release)
        yield Item("kernels", name, sizes[release], why, removal)


def _clear(kernels: JitCache, release: str) -> str:
    return "; ".join(kernels.clear(Query(version=release), everything=True).errors)


def _downloads(deployment: Deployment) -> Iterator[Item]:
    """Parts of downloads of the profile's models that nothing has written to for a week."""
    profile = deployment.profile
    places = dict(zip(profile.caches, places_of(profile, deployment.root, ""), strict=True))
    if HUGGINGFACE.name not in places:
        return
    weights = ContainerMount(*places[HUGGINGFACE.name])
    place = weights.source
    run: Run = partial(process.run, check=False)
    if weights.kind == "volume":
        if deployment.engine.volume(place) is None:
            return
        place = f"/{place}"
        run = _in_volume(deployment, weights)
    elif not deployment.is_local:
        return
    repos = {model.repo for one in profile.services.values() for model in one.models}
    for repo in sorted(repos):
        blobs = f"{place}/hub/models--{repo.replace('/', '--')}/blobs"
        parts = [
            "find",
            blobs,
            "-name",
            "*.incomplete",
            "-type",
            "f",
            "-mtime",
            f"+{BROKEN_OFF - 1}",
        ]
        sizes = run([*parts, "-printf", "%s\n"]).stdout.split()
        if sizes:
            why = f"a download of {repo} that was broken off"
            removal = partial(_delete, run, parts)
            yield Item("download", blobs, sum(map(int, sizes)), why, removal)


def _delete(run: Run, parts: Sequence[str]) -> str:
    return run([*parts, "-delete"]).stderr.decode("utf-8", "replace")


# In the project


def _is_forgotten(root: Path, profile: str) -> bool:
    """Whether a trial was broken off a month ago."""
    with suppress(OSError):
        began = (journal.folder_of(root, profile) / journal.TRIAL).stat().st_mtime
        return _age(began) > UNUSED and journal.abandoned(root, profile)
    return False


def _old(root: Path, kind: str, kept: Sequence[str]) -> Iterator[Item]:
    """Old files of a kind that are none of the newest. ``kept``: the beginnings of names that stay."""
    folder, newest, days = FILES[kind]
    there = []
    with suppress(RefusedError):
        there = files.state_files(root, folder, "[!.]*")
    why = f"older than {days} days, and not one of the newest {newest}"
    for path, status in there[:-newest]:
        if path.name.startswith(tuple(kept)):
            continue
        if _age(status.st_mtime) > days:
            name = str(path.relative_to(root))
            removal = partial(path.unlink, missing_ok=True)
            yield Item(kind, name, status.st_size, why, removal)
