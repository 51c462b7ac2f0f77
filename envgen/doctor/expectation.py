"""What the profile promises a container: variables, mounts, and the digest of its image."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from envgen.engine.client import Engine
from envgen.engine.owner import run_as
from envgen.engine.values import Mount
from envgen.inside import run
from envgen.profile.model import Profile
from envgen.render import environment as promised
from envgen.render.assemble import render_profile
from envgen.render.locking import lock_of_image
from envgen.render.namespace import places_of

PER_MACHINE = ("MAX_JOBS",)  # computed when a service starts


def compose_env(profile: Profile, service: str) -> dict[str, str]:
    """What Compose sets for a service, weakest first: derived from the profile, its groups in their order, its own."""
    described = profile.services.get(service)
    chosen = described.env_groups if described else None
    env = {**promised.service_env(profile), **promised.user_env(profile, service)}
    for name, group in profile.env.items():
        in_use = profile.env_groups is None or name in profile.env_groups
        if in_use and (chosen is None or name in chosen):
            env.update(group)
    return {**env, **(described.env if described else {})}


def service_env(profile: Profile, service: str) -> dict[str, str]:
    """All variables that a container of the service should have: those of the image, under those of Compose.

    PYTHONPATH of the image is only a beginning: what the base image has follows it.
    """
    env = {**promised.derived_env(profile), **compose_env(profile, service)}
    return {name: value for name, value in env.items() if name not in PER_MACHINE}


def mounts(profile: Profile, root: Path, engine: Engine, service: str) -> list[Mount]:
    """What Compose would mount: of volumes those that exist, for a throw-away container must not create them."""
    machine = promised.compose_environment(profile, root)
    image = engine.image(profile.image_name)
    found = []
    for name, source in profile.mounted_sources.items():
        found.append(Mount(machine[promised.checkout_variable(name)], str(source.mount)))
    for name, one in profile.services[service].mounts.items() if service in profile.services else ():
        place = machine[promised.mount_variable(service, name)]
        found.append(Mount(place, str(one.path), read_only=one.read_only))
    volumes = [(promised.overlay_volume(profile), promised.OVERLAY)] if profile.mounted_sources else []
    for place, target, kind in places_of(profile, root, image.labels if image else None):
        if kind == "volume":
            volumes.append((place, target))
        else:
            found.append(Mount(place, target))
    return [*found, *(Mount(name, target, "volume") for name, target in volumes if engine.volume(name) is not None)]


def throw_away(
    engine: Engine, profile: Profile, root: Path, service: str, memory: int = run.MEMORY
) -> tuple[run.Execute, list[Mount]]:
    """A runner in a throw-away container with what Compose would mount and set, as far as it exists; these mounts."""
    mounted, user = mounts(profile, root, engine, service), run_as(engine, profile, service)
    if engine.info().endpoint.startswith("unix://"):
        mounted = [one for one in mounted if one.kind == "volume" or Path(one.source).exists()]
    env, absent = compose_env(profile, service), list[Mount]()
    return run.in_image(
        engine, profile.image_name, mounts=mounted, env=env, user=user, memory=memory, absent=absent
    ), mounted  # fmt: skip


def image_digest(profile: Profile, root: Path, labels: Mapping[str, str] | None = None) -> str:
    """The render digest that an image of this profile would carry now. ``labels``: those of the image that is there."""
    return render_profile(profile, lock_of_image(profile, root, labels), root=root).digest
