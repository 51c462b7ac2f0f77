"""Pull the base image of a profile."""

from __future__ import annotations

from envgen.app.session import Session
from envgen.engine import process
from envgen.engine.docker import connect
from envgen.engine.endpoint import find_endpoint
from envgen.engine.terminal import docker_program
from envgen.errors import LockError
from envgen.lock.model import LOCAL
from envgen.render.locked import lock_of
from envgen.render.locking import base_image
from envgen.text import progress


def pull(session: Session) -> tuple[str, str]:
    """Pull with Docker's own program, which knows the user's logins; name and id of the image."""
    profile, root = session.profile(), session.loaded().project.root
    lock = lock_of(profile, root)
    name = base_image(profile.base.image, lock)
    engine = connect()
    if lock is not None and lock.base is not None and lock.base.resolved == LOCAL:
        raise LockError(f"{name} is locked as an image of this machine", hint="envgen lock --upgrade base")
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
        raise LockError(f"{name} could not be pulled: {reason}", hint=f"if it needs a login: {login}")
    return name, image.id
