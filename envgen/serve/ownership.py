"""Before a service starts: folders that Docker would make as root are made for its user, and volumes handed to it."""

from __future__ import annotations

import os
from pathlib import Path

from envgen.engine.client import Engine
from envgen.engine.owner import ROOT, caller, run_as
from envgen.engine.values import Mount
from envgen.errors import EngineError, RefusedError
from envgen.profile.model import Profile
from envgen.render.environment import OVERLAY, overlay_volume
from envgen.render.locking import places_of
from envgen.text import progress

LIMIT = 900.0  # seconds, for a cache of a million files
# The overlay whole: a single file of root's would stop pip. A cache may be large: its folder tells whose it was.
_HAND_OVER = """\
owner=$1 overlay=$2; shift 2; uid=${owner%:*}; gid=${owner#*:}
for folder; do
  if [ "$folder" = "$overlay" ] || [ "$(stat -c %u "$folder")" != "$uid" ]; then
    find "$folder" -xdev ! -uid "$uid" -exec chown -h "$uid:$gid" {} + || exit
  fi
done
"""


def prepare(engine: Engine, profile: Profile, root: Path, service: str) -> None:
    """Make missing cache folders on this machine, and give volumes that are there to the service's user."""
    image = engine.image(profile.image_name)
    places = list(places_of(profile, root, image.labels if image else None))
    folders = [Path(place) for place, _target, kind in places if kind == "bind"]
    if folders and engine.info().endpoint.startswith("unix://"):
        for folder in folders:
            make_folder(folder)
    owner = run_as(engine, profile, service)
    if folders and owner in ("", ROOT) and engine.info().remapped:
        user = "host" if caller()[0] else "UID:GID"  # real root is remapped, too
        progress(f"  note: under userns-remap {service} is root in its container alone, and may not write to")
        progress(f"  {', '.join(map(str, folders))} unless it has `services.{service}.user: {user}`")
    if owner in ("", ROOT) or image is None:
        return
    volumes = [(place, target) for place, target, kind in places if kind == "volume"]
    if profile.mounted_sources:
        volumes.append((overlay_volume(profile), OVERLAY))
    mounts = [Mount(name, target, "volume") for name, target in volumes if engine.volume(name) is not None]
    if mounts:
        owner = owner if ":" in owner else f"{owner}:0"
        words = ["sh", "-c", _HAND_OVER, "sh", owner, OVERLAY, *(mount.target for mount in mounts)]
        done = engine.run_once(image.id, words, mounts=mounts, user=ROOT, unmapped=True, timeout=LIMIT)
        if done.code:
            said = (done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.code}"])[-1]
            raise EngineError(f"the volumes of {profile.compose_name} could not be given to user {owner}: {said}")


def make_folder(folder: Path) -> None:
    """Make a folder of this machine with those above it, for the user who runs envgen; under sudo, who called it."""
    missing = [at for at in (folder, *folder.parents) if not at.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if missing and os.getuid() == 0:
            for at in missing:
                os.chown(at, *caller(), follow_symlinks=False)
    except OSError as error:
        raise RefusedError(
            f"the cache folder {folder} can't be made: {error.strerror}",
            hint="name another folder in envgen.local.yaml (caches.NAME.host), or make it yourself",
        ) from None
    if missing:
        progress(f"  made the folder {folder}")
