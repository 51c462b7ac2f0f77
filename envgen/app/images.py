"""Images that the engine has already: the one that fits the profile, and the one before it.

An image is found by its labels, whatever its name; what it was built from is kept beside the
project's other state, so that the way back needs neither git nor a network.
"""

from __future__ import annotations

from pathlib import Path

from envgen import files
from envgen.app.session import Candidate, Session
from envgen.deployment import Deployment
from envgen.engine.values import Image
from envgen.errors import ProjectError
from envgen.lock.model import Lock, lock_text, read_lock
from envgen.profile import tree
from envgen.render.outputs import RENDER_LABEL
from envgen.text import progress, short_id

BEFORE = "-before"  # after the name of the image that another one has replaced
ASIDE = "-aside"  # after that of the image whose name a candidate has for its start
_DIGITS = 16


def is_named(deployment: Deployment) -> bool:
    """Whether a lock names all that a build would fetch. Without one BuildKit alone knows whether a
    base image, or a wheel in a folder of wheels, has changed.
    """
    lock = deployment.lock
    if lock is None or not lock.base:
        return False
    return bool(lock.python) or deployment.profile.build.wheelhouse is None


def fitting(deployment: Deployment) -> Image | None:
    """The newest image on the engine that was built from what the profile and its lock say now."""
    wanted = deployment.to_build()
    if not is_named(wanted):
        return None
    labels = {
        "dev.envgen.project": wanted.profile.project,
        "dev.envgen.profile": wanted.profile.name,
    }
    built = wanted.engine.images(f"{RENDER_LABEL}={wanted.rendered.digest}")
    own = [image for image in built if not image.committed]
    fits = [image for image in own if labels.items() <= image.labels.items()]
    return fits[-1] if fits else None


def adopt(deployment: Deployment) -> Deployment:
    """``deployment``, with an image that fits under the profile's name, if the engine has one."""
    if deployment.is_current or not (image := fitting(deployment)):
        return deployment
    engine = deployment.engine
    name = deployment.profile.image_name
    keep_before(deployment, deployment.image)
    engine.tag(image.id, name)
    for end in (ASIDE, Candidate.tag):
        if name + end in image.repo_tags:
            engine.remove_image(name + end)  # this name of it
    progress(f"{name} is now {short_id(image.id)}, which the engine had: nothing is built")
    return deployment.to_build()


def keep_before(deployment: Deployment, image: Image | None) -> None:
    """Name an image that is replaced, so that neither Docker nor `envgen prune` removes it."""
    name = deployment.profile.image_name
    if image is None or RENDER_LABEL not in image.labels or deployment.own_lock is not None:
        return
    if name + Candidate.tag not in image.repo_tags:  # it was only tried, under a lent name
        deployment.engine.tag(image.id, name + BEFORE)


# --- what an image was built from


def kept_name(profile: str, digest: str) -> str:
    """The name of the files that an image was built from, without an ending."""
    return f"{profile}-{digest[:_DIGITS]}"


def _kept(deployment: Deployment, digest: str) -> Path:
    name = f"{kept_name(deployment.profile.name, digest)}.yaml"
    return files.state_dir(deployment.root, "history") / name


def remember(session: Session, deployment: Deployment) -> None:
    """Keep the project's file and lock that its image was built from."""
    if deployment.lock is None or not deployment.is_current:
        return
    root = deployment.root
    path = _kept(deployment, deployment.rendered.digest)
    file = session.loaded().project.file
    text = tree.file_text(file, file.name)
    files.write(path, text.encode(), within=root)
    lock = lock_text(deployment.lock_file or Lock())
    files.write(path.with_suffix(".lock"), lock.encode(), within=root)


def remembered(deployment: Deployment, image: Image | None) -> tuple[str, Lock] | None:
    """The project file's text and the lock that an image was built from, if they were kept."""
    digest = image.labels.get(RENDER_LABEL, "") if image else ""
    path = _kept(deployment, digest)
    if not digest or not path.with_suffix(".lock").is_file() or not path.is_file():
        return None
    try:
        return tree.file_text(path, path.name), read_lock(path.with_suffix(".lock"))
    except ProjectError:  # damaged: there is no way back
        return None
