"""The owner of a container or volume: the project folder and the user that made it, from its labels."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envgen.engine.client import Engine
from envgen.engine.values import Container
from envgen.profile.model import Profile

ROOT = "0:0"


def caller() -> tuple[int, int]:
    """Uid and gid of the user who runs envgen; under sudo of the one who called it."""
    uid, gid = os.environ.get("SUDO_UID", ""), os.environ.get("SUDO_GID", "")
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


FOLDER = "dev.envgen.folder"
USER = "dev.envgen.user"
WORKING_DIR = "com.docker.compose.project.working_dir"


@dataclass(frozen=True)
class Owner:
    """A project folder and a user; ``uid`` and ``user`` are "" where only the folder is known."""

    folder: str
    uid: str = ""
    user: str = ""

    def __str__(self) -> str:
        return f"{self.folder} ({self.who})" if self.uid else self.folder

    @property
    def who(self) -> str:
        """The user, in words."""
        return f"user {self.user}, uid {self.uid}" if self.user else f"uid {self.uid}"

    @property
    def labels(self) -> dict[str, str]:
        """What a volume of this owner carries."""
        return {FOLDER: self.folder, USER: f"{self.uid} {self.user}".strip()}

    def same_folder(self, other: Owner) -> bool:
        """Whether both are one folder, whatever links lead there."""
        return os.path.realpath(self.folder) == os.path.realpath(other.folder)

    def same(self, other: Owner) -> bool:
        """The same folder, and not two users that are known to differ."""
        return self.same_folder(other) and (not (self.uid and other.uid) or self.uid == other.uid)

    @property
    def is_gone(self) -> bool:
        """Whether the folder is no longer on this machine. One that can't be looked at is there."""
        try:
            Path(self.folder).stat()
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            return False
        return False


def this_owner(root: Path) -> Owner:
    """The project in ``root``, and who runs envgen: under sudo, who called it."""
    uid, _ = caller()
    try:
        name = pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        name = ""
    return Owner(os.path.realpath(root), str(uid), name)


def owner_in(labels: Mapping[str, str]) -> Owner | None:
    """The owner that the labels of a volume name."""
    folder = labels.get(FOLDER)
    uid, _, user = labels.get(USER, "").partition(" ")
    return Owner(folder, uid, user) if folder else None


def owner_of(container: Container) -> Owner | None:
    """The folder that a container's Compose file is in, as Compose itself labels it."""
    folder = container.labels.get(WORKING_DIR)
    if not folder:
        return None
    place = Path(folder)
    return Owner(str(place.parent if place.name == "compose" else place))


def ours(containers: Sequence[Container], root: Path) -> tuple[Container, ...]:
    """``containers`` without those of a project in another folder than ``root``."""
    owners = ((one, owner_of(one)) for one in containers)
    return tuple(one for one, owner in owners if owner is None or owner.same_folder(Owner(str(root))))
