"""Who owns a profile's name on the engine: one project folder and user at a time; all others are refused.

Containers, the image and the overlay go by NAME-PROFILE, so two folders with one `name:` would take each other's. Who
builds or starts first holds the name: an empty volume, NAME-PROFILE-owner, has folder and user as labels. An engine
makes a volume of a name once, so of two at once one holds it. An image carries no folder: its bytes are the same for
everybody.
"""

from __future__ import annotations

from pathlib import Path

from envgen.engine.client import Engine
from envgen.engine.owner import Owner, owner_in, owner_of, this_owner
from envgen.errors import RefusedError
from envgen.profile.model import Profile


def claim_volume(profile: Profile) -> str:
    """The volume whose labels say who holds the profile's name."""
    return f"{profile.compose_name}-owner"


def other_owner(engine: Engine, profile: Profile, root: Path) -> Owner | None:
    """Who else holds the name of ``profile``; None where it is free or ours.

    A name without a container and an image is free. So is one without a container whose holder's folder is no longer on
    this machine.
    """
    mine = this_owner(root)
    containers = engine.containers(profile.compose_name, all=True)
    holder = owner_in(engine.volume_labels(claim_volume(profile)) or {})
    if holder is not None and not holder.same(mine):
        built = engine.image(profile.image_name) is not None
        if containers or (built and not (engine.info().local and holder.is_gone)):
            return holder
    owners = (owner_of(one) for one in containers)
    return next((one for one in owners if one is not None and not one.same(mine)), None)


def require(engine: Engine, profile: Profile, root: Path) -> None:
    """RefusedError, with both owners, where the name of ``profile`` is not ours."""
    if other := other_owner(engine, profile, root):
        raise refused(engine, profile, root, other)


def refused(engine: Engine, profile: Profile, root: Path, other: Owner) -> RefusedError:
    """The error for a name that ``other`` holds."""
    name = profile.compose_name
    gone = "; that folder no longer exists" if engine.info().local and other.is_gone else ""
    commands = [f"docker compose -p {name} down"] if engine.containers(name, all=True) else []
    if engine.volume_labels(claim_volume(profile)) is not None:
        commands.append(f"docker volume rm {claim_volume(profile)}")
    return RefusedError(
        f"{name} belongs to {other}; this is {this_owner(root)}{gone}",
        hint=f"to work beside it, write `name: {profile.project}-2`, and ports of its own, into envgen.local.yaml; "
        f"to take its place: {' && '.join(commands)}",
    )


def claim(engine: Engine, profile: Profile, root: Path) -> None:
    """Hold the name of ``profile`` from now on. RefusedError where somebody else does, or was faster."""
    require(engine, profile, root)
    mine, name = this_owner(root), claim_volume(profile)
    holder = owner_in(engine.volume_labels(name) or {})
    if holder is not None and not holder.same(mine):  # of somebody who has left nothing
        release(engine, profile)
    engine.create_volume(name, mine.labels)
    require(engine, profile, root)


def release(engine: Engine, profile: Profile) -> None:
    """Let go of the name."""
    engine.remove_volume(claim_volume(profile))
