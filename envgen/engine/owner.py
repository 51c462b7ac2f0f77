"""The user of envgen, the user of a container, and the project folder that created it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from envgen.engine.client import Engine
from envgen.engine.values import Container, ContainerRow
from envgen.profile.model import Profile

ROOT = "0:0"


def caller() -> tuple[int, int]:
    """Uid and gid of the user who runs envgen; under sudo, of the user who called sudo."""
    uid = os.environ.get("SUDO_UID", "")
    gid = os.environ.get("SUDO_GID", "")
    is_sudo = uid.isdecimal() and gid.isdecimal()
    if os.getuid() == 0 and is_sudo:
        return int(uid), int(gid)
    return os.getuid(), os.getgid()


def host_user(engine: Engine) -> tuple[int, int]:
    """Uid and gid of ``user: host`` in this engine's containers: in a rootless one, root is the
    user who runs it.
    """
    return (0, 0) if engine.info().rootless else caller()


def run_as(engine: Engine, profile: Profile, service: str) -> str:
    """The user of a service's containers as UID[:GID]; "": the image's own."""
    user = profile.user_of(service)
    if user == "host":
        return "{}:{}".format(*host_user(engine))
    return ROOT if user == "root" else user


WORKING_DIR = "com.docker.compose.project.working_dir"


def folder_of(container: Container | ContainerRow) -> Path | None:
    """The project folder of a container, by Compose's own label."""
    folder = container.labels.get(WORKING_DIR)
    if not folder:
        return None
    place = Path(folder)
    return place.parent if place.name == "compose" else place


FOLDER = "dev.envgen.folder"  # of a volume: the project folder that created it


def elsewhere(container: Container, root: Path, *, local: bool) -> Path | None:
    """The project folder of a container, if it is not ``root``, links resolved; else None.

    On a ``local`` engine a folder that was moved or removed leaves its containers to ``root``.
    """
    folder = folder_of(container)
    if not folder or same(folder, root) or (local and is_gone(folder)):
        return None
    return folder


def is_gone(folder: Path) -> bool:
    """Whether a path is certainly not there: one of another user may be, where we can't look."""
    try:
        os.lstat(folder)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass
    return False


def same(folder: Path, root: Path) -> bool:
    """Whether two paths are one folder, links resolved."""
    return os.path.realpath(folder) == os.path.realpath(root)


def ours(containers: Sequence[Container], root: Path, *, local: bool) -> tuple[Container, ...]:
    """``containers`` without those of a project in another folder than ``root``."""
    return tuple(one for one in containers if elsewhere(one, root, local=local) is None)
