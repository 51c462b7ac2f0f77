"""Whose a profile's name on the engine is: one project folder and user at a time; all others are refused.

Containers, the image and the overlay go by NAME-PROFILE, so two folders with one `name:` would take each other's. Who
builds or starts first holds the name: an empty volume, NAME-PROFILE-owner, has folder and user as labels. An engine
makes a volume of a name once, so of two at once one holds it. An image carries no folder: its bytes are the same for
everybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from envgen.engine.client import Engine
from envgen.engine.compose import Compose
from envgen.engine.host import CREATOR, Creator, lives, this_process
from envgen.engine.owner import Owner, owner_in, owner_of, this_owner
from envgen.engine.values import COMPOSE_PROJECT
from envgen.errors import EngineError, RefusedError
from envgen.profile.load import as_instance
from envgen.profile.model import Profile
from envgen.render.environment import overlay_volume
from envgen.render.locking import namespace_here, volume_of
from envgen.text import progress

PROJECT = "dev.envgen.project"
IMAGE = "dev.envgen.image"
_TRIES = 5


def claim_volume(profile: Profile) -> str:
    """The volume whose labels say who holds the profile's name."""
    return f"{profile.compose_name}-owner"


def claim_labels(profile: Profile, owner: Owner) -> dict[str, str]:
    """Its labels: who holds the name, which process took it, and the image that was built under it."""
    return {**owner.labels, CREATOR: str(this_process()), PROJECT: profile.project, IMAGE: profile.image_name}


def removed_folders(engine: Engine, project: str) -> dict[str, tuple[Owner, str]]:
    """The names of ``project`` whose holder's folder is no longer on this machine, such as a removed worktree's: the
    holder, and the image's name. Nothing for a remote engine, or for what took the name in another machine or
    container: its folders can't be seen from here."""
    here, found = this_process(), {}
    if not engine.info().local:
        return {}
    for volume in engine.volumes(f"{project}-"):
        labels = engine.volume_labels(volume) or {}
        holder, maker = owner_in(labels), Creator.parse(labels.get(CREATOR, ""))
        if labels.get(PROJECT) != project or holder is None or maker is None or not holder.is_gone:
            continue
        if (maker.host, maker.namespace) == (here.host, here.namespace):
            found[volume.removesuffix("-owner")] = (holder, labels.get(IMAGE, ""))
    return found


def other_owner(engine: Engine, profile: Profile, root: Path) -> Owner | None:
    """Who else holds the name of ``profile``; None where it is free or ours."""
    mine = this_owner(root)
    containers = engine.containers(profile.compose_name, all=True)
    claimed = engine.volume_labels(claim_volume(profile)) or {}
    installed = engine.volume_labels(overlay_volume(profile))
    holder, maker = _holder(engine, claimed), Creator.parse(claimed.get(CREATOR, ""))
    if holder is not None and not holder.same(mine):
        # A name without anything behind it is free, once the run is over that took it.
        used = containers or installed is not None or engine.image(profile.image_name) is not None
        if used or (maker is not None and lives(maker) is not False):
            return holder
    found = [owner_in(installed or {}), *(owner_of(one) for one in containers)]
    return next((one for one in found if one is not None and not one.same(mine)), None)


def _holder(engine: Engine, claimed: Mapping[str, str]) -> Owner | None:
    """Who made the volume of the claim. One folder and user on two computers are two: an engine may serve both."""
    holder, maker = owner_in(claimed), Creator.parse(claimed.get(CREATOR, ""))
    # A container on this computer has another name.
    if holder is None or maker is None or engine.info().local:
        return holder
    return holder if maker.host == this_process().host else replace(holder, host=maker.host)


def demand(engine: Engine, profile: Profile, root: Path, fix: str = "") -> None:
    """RefusedError, with both owners, where the name of ``profile`` is not ours. ``fix``: the command that takes it."""
    if other := other_owner(engine, profile, root):
        raise refused(engine, profile, root, other, fix)


def refused(engine: Engine, profile: Profile, root: Path, other: Owner, fix: str = "") -> RefusedError:
    """The error for a name that ``other`` holds."""
    mine = this_owner(root)
    verb = f"up {next(iter(profile.services))}" if profile.services else "build"
    hint = f"to take it over: {fix or f'envgen {verb} --profile {profile.name} --take-over'}"
    if other.same_folder(mine):
        what = f"{profile.compose_name} belongs to {other.who}, who made it from this folder, {mine.folder}"
        return RefusedError(f"{what}; you are {mine.who}", hint=hint)
    what = f"{profile.compose_name} belongs to another folder: {other}; this one is {mine}"
    if engine.info().local and other.is_gone:
        what += "; that folder no longer exists"
    beside = f"write `instance: {as_instance(root.name)}` at the top of envgen.local.yaml, then `envgen build`"
    return RefusedError(what, hint=f"{hint}; to work beside it: {beside}")


def claim(engine: Engine, profile: Profile, root: Path, fix: str = "") -> None:
    """Hold the name of ``profile`` from now on. RefusedError where somebody else does, or was faster."""
    mine, name = this_owner(root), claim_volume(profile)
    for _ in range(_TRIES):
        demand(engine, profile, root, fix)
        engine.create_volume(name, claim_labels(profile, mine))
        holder = _holder(engine, engine.volume_labels(name) or {})
        if holder is not None and holder.same(mine):
            return
        if holder is not None and other_owner(engine, profile, root) is None:
            release(engine, profile)  # of somebody who has left nothing
        elif holder is not None:
            raise refused(engine, profile, root, holder, fix)
    raise EngineError(f"the volume {name} does not keep its labels", hint=f"docker volume rm {name}")


def take_over(engine: Engine, profile: Profile, root: Path, compose: Compose) -> None:
    """Free the name of ``profile``: another folder's containers are stopped and removed, and its overlay with them.
    Nothing happens where the name is free or ours."""
    other = other_owner(engine, profile, root)
    if other is None:
        return
    progress(f"  taking over {profile.compose_name} from {other}")
    if not other.same_folder(this_owner(root)):
        for one in engine.containers(profile.compose_name, all=True):
            progress(f"  stopping and removing {one.name}")
        compose.run("--profile", "*", "down", "--remove-orphans")
        engine.remove_volume(overlay_volume(profile))
    release(engine, profile)


def release(engine: Engine, profile: Profile) -> None:
    """Let go of the name."""
    engine.remove_volume(claim_volume(profile))


def make_volumes(engine: Engine, profile: Profile, root: Path) -> None:
    """What services mount and Compose must not make: the overlay with its owner; for a copy, the caches that all
    copies share, with the labels that Compose gives them in the plain one."""
    if profile.mounted_sources:
        made = {COMPOSE_PROJECT: profile.compose_name, "com.docker.compose.volume": "overlay"}
        engine.create_volume(overlay_volume(profile), {**made, **this_owner(root).labels})
    if not profile.instance:
        return
    image = engine.image(profile.image_name)
    key = namespace_here(profile, root, image.labels if image else None)
    for name, cache in profile.caches.items():
        if cache.host is None:
            made = {COMPOSE_PROJECT: profile.shared_name, "com.docker.compose.volume": f"cache-{name}"}
            engine.create_volume(volume_of(profile, name, key), made)
