"""The folders and volumes of a service, made ready before it starts."""

from __future__ import annotations

import os
from pathlib import Path

from envgen.deployment import Deployment, LiveService
from envgen.engine.owner import ROOT, caller, run_as
from envgen.engine.values import ContainerMount, Image
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


def prepare(service: LiveService) -> None:
    """Create missing cache folders on this machine, and give existing volumes to the service's
    user.
    """
    deployment = service.deployment
    engine = service.engine
    create_volumes(service)
    for mount in deployment.caches.values():
        if mount.kind == "bind" and engine.info().local:
            make_folder(Path(mount.source))
    owner = run_as(engine, service.profile, service.name)
    if owner not in ("", ROOT) and deployment.image is not None:
        _hand_over(deployment, deployment.image, owner if ":" in owner else f"{owner}:0")


def _volumes(deployment: Deployment) -> list[ContainerMount]:
    """The volumes that each service has."""
    mounts = [mount for mount in deployment.caches.values() if mount.kind == "volume"]
    if deployment.profile.mounted_sources:
        mounts.append(ContainerMount(overlay_volume(deployment.profile), OVERLAY, "volume"))
    return mounts


def _hand_over(deployment: Deployment, image: Image, owner: str) -> None:
    """Give the volumes to ``owner``."""
    engine = deployment.engine
    there = _volumes(deployment)
    mounts = [mount for mount in there if engine.volume(mount.source) is not None]
    if not mounts:
        return
    words = ["sh", "-c", _HAND_OVER, "sh", owner, OVERLAY, *(mount.target for mount in mounts)]
    done = engine.run_once(image.id, words, mounts=mounts, user=ROOT, timeout=LIMIT)
    if done.code:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else f"exit code {done.code}"
        volumes = f"the volumes of {deployment.profile.compose_name}"
        raise EngineError(f"{volumes} could not be given to user {owner}: {reason}")


def create_volumes(service: LiveService) -> None:
    """Create the missing volumes of a service, as Compose would, with the label of this folder.

    The committed Compose files hold no folder of a machine, so Compose can't write that label.
    """
    deployment = service.deployment
    engine = service.engine
    missing = [mount for mount in _volumes(deployment) if engine.volume(mount.source) is None]
    if service.profile.compose is None and not missing:
        return
    mounted = deployment.compose.service(service.name).get("volumes") or ()
    used = [str(one.get("source")) for one in mounted]
    for key, volume in (deployment.compose.document.get("volumes") or {}).items():
        if key not in used or volume.get("external"):
            continue
        name = str(volume.get("name", key))
        driver = str(volume.get("driver") or "")
        if engine.volume(name) is None:
            deployment.create_volume(name, key, driver, volume.get("driver_opts"))


def make_folder(folder: Path) -> None:
    """Create a folder and its parents for the user who runs envgen; under sudo, for the user who
    called sudo.
    """
    missing = [at for at in (folder, *folder.parents) if not at.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.getuid() == 0:
            for at in missing:
                os.chown(at, *caller(), follow_symlinks=False)
    except OSError as error:
        raise RefusedError(
            f"the cache folder {folder} can't be created: {error.strerror}",
            hint="name another folder in envgen.local.yaml (caches.NAME.host), or create it yourself",
        ) from None
    if missing:
        progress(f"  created the folder {folder}")
