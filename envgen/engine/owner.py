"""Who runs envgen, and as which user a container of a profile runs: files in mounted folders must stay the user's."""

from __future__ import annotations

import os
from collections.abc import Mapping

from envgen.engine.base import Engine
from envgen.profile.model import Profile

ROOT = "0:0"


def caller(environ: Mapping[str, str] | None = None) -> tuple[int, int]:
    """Uid and gid of the user who runs envgen; under sudo of the one who called it."""
    found = os.environ if environ is None else environ
    uid, gid = found.get("SUDO_UID", ""), found.get("SUDO_GID", "")
    if os.getuid() == 0 and uid.isdecimal() and gid.isdecimal():
        return int(uid), int(gid)
    return os.getuid(), os.getgid()


def host_user(engine: Engine) -> tuple[int, int]:
    """What ``user: host`` is in containers of this engine. Of a rootless one root is the user who runs it."""
    return (0, 0) if engine.info().rootless else caller()


def run_as(engine: Engine, profile: Profile, service: str) -> str:
    """The user of a service's containers as UID[:GID]; "" = the image's own."""
    user = profile.user_of(service)
    if user == "host":
        return "{}:{}".format(*host_user(engine))
    return ROOT if user == "root" else user
