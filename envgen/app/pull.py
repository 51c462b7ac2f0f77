"""`envgen pull`: the base image."""

from __future__ import annotations

from envgen.app.session import Session
from envgen.deployment import Deployment
from envgen.engine import process
from envgen.engine.endpoint import docker_program, find_endpoint
from envgen.errors import LockError, named
from envgen.lock.model import LOCAL
from envgen.lock.servers import registry_error
from envgen.render.locking import base_image
from envgen.text import progress


def pull(session: Session) -> tuple[str, str]:
    """Pull the base image with the docker CLI, which has the user's logins. Returns the image's name and ID."""
    deployment = Deployment(session.profile(), session.loaded().project.root)
    profile, lock, engine = deployment.profile, deployment.locked, deployment.engine
    name = base_image(profile.base.image, lock)
    if lock is not None and lock.base is not None and lock.base.resolved == LOCAL:
        raise LockError(f"{name} is locked as an image of this machine", hint=f"{profile.lock_command} --upgrade base")
    platform = [f"--platform={profile.base.platform.value}"] if profile.base.platform else []
    done = process.stream(
        [docker_program(), "pull", *platform, name],
        lambda _channel, line: progress(f"  {line.decode(errors='replace')}"),
        env=find_endpoint().environment,
    )
    image = engine.image(name)
    if done.code or image is None:
        reason = "".join(done.stderr.decode(errors="replace").strip().splitlines()[-1:])
        login = f"docker login {profile.base.image.registry}".strip()
        hint = f"if it needs a login: {login}"
        raise named(f"{name} could not be pulled", registry_error(reason, profile.base.image, hint=hint))
    return name, image.id
