"""The folders and volumes of a service, made ready before it starts."""

from __future__ import annotations

import os
from pathlib import Path

from envgen.deployment import Deployment
from envgen.engine.owner import ROOT, caller, run_as
from envgen.engine.values import ContainerMount
from envgen.errors import EngineError, RefusedError
from envgen.render.environment import OVERLAY, overlay_volume
from envgen.text import progress

LIMIT = 900.0  # seconds, for a cache of a million files
# The whole overlay: a single file of root would stop pip. A cache may be large, so its folder's
# owner decides.
_HAND_OVER = """\
owner=$1 overlay=$2; shift 2; uid=${owner%:*}; gid=${owner#*:}
for folder; do
  if [ "$folder" = "$overlay" ] || [ "$(stat -c %u "$folder")" != "$uid" ]; then
    find "$folder" -xdev ! -uid "$uid" -exec chown -h "$uid:$gid" {} + || exit
  fi
done
"""


def prepare(deployment: Deployment, service: str) -> None:
    """Create missing cache folders on this machine, and give existing volumes to the service's
    user.
    """
    profile, engine, image = deployment.profile, deployment.engine, deployment.image
    create_volumes(deployment, service)
    folders = [Path(mount.source) for mount in deployment.caches.values() if mount.kind == "bind"]
    if folders and engine.info().local:
        for folder in folders:
            make_folder(folder)
    owner = run_as(engine, profile, service)
    if owner in ("", ROOT) or image is None:
        return
    volumes = [mount for mount in deployment.caches.values() if mount.kind == "volume"]
    if profile.mounted_sources:
        volumes.append(ContainerMount(overlay_volume(profile), OVERLAY, "volume"))
    mounts = [mount for mount in volumes if engine.volume(mount.source) is not None]
    if mounts:
        owner = owner if ":" in owner else f"{owner}:0"
        words = ["sh", "-c", _HAND_OVER, "sh", owner, OVERLAY, *(mount.target for mount in mounts)]
        done = engine.run_once(image.id, words, mounts=mounts, user=ROOT, timeout=LIMIT)
        if done.code:
            error = (
                done.stderr.decode(errors="replace").strip().splitlines()
                or [f"exit code {done.code}"]
            )[-1]
            raise EngineError(
                f"the volumes of {profile.compose_name} could not be given to user {owner}: {error}"
            )


def create_volumes(deployment: Deployment, service: str) -> None:
    """Create the missing volumes of a service, as Compose would, with the label of this folder.

    The committed Compose files hold no folder of a machine, so Compose can't write that label.
    """
    profile = deployment.profile
    own = [mount.source for mount in deployment.caches.values() if mount.kind == "volume"]
    own += [overlay_volume(profile)] if profile.mounted_sources else []
    if profile.compose is None and all(deployment.engine.volume(name) is not None for name in own):
        return
    document = deployment.compose.document
    used = {str(one.get("source")) for one in document["services"][service].get("volumes") or ()}
    for key, volume in (document.get("volumes") or {}).items():
        name = str(volume.get("name", key))
        if key in used and not volume.get("external") and deployment.engine.volume(name) is None:
            deployment.create_volume(
                name, key, str(volume.get("driver") or ""), volume.get("driver_opts")
            )


def make_folder(folder: Path) -> None:
    """Create a folder and its parents for the user who runs envgen; under sudo, for the user who
    called sudo.
    """
    missing = [at for at in (folder, *folder.parents) if not at.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if missing and os.getuid() == 0:
            for at in missing:
                os.chown(at, *caller(), follow_symlinks=False)
    except OSError as error:
        raise RefusedError(
            f"the cache folder {folder} can't be created: {error.strerror}",
            hint="name another folder in envgen.local.yaml (caches.NAME.host), or create it yourself",
        ) from None
    if missing:
        progress(f"  created the folder {folder}")
