"""What a Docker Engine gives us, as frozen values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

COMPOSE_PROJECT = "com.docker.compose.project"
COMPOSE_SERVICE = "com.docker.compose.service"
COMPOSE_ONE_OFF = "com.docker.compose.oneoff"

# No program needs to write more; an endless writer must not fill the memory of envgen.
OUTPUT_LIMIT = 10 << 20

LOG_LIMIT = 16 << 20  # bytes of a container's log that are read at once; of a longer one the end

# What a throw-away container gets. It reads what strangers wrote (a cache, an archive), and on unified memory a limit
# for it is one for the machine.
MEMORY = 4 << 30
PIDS = 4096


# What reading a document of another shape raises: it comes out of a container, so it may contain anything.
MISSHAPEN = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


@dataclass(frozen=True)
class ExecResult:
    """How a program inside a container ended, and what it wrote."""

    code: int
    stdout: bytes
    stderr: bytes

    def document(self) -> Any:
        """What it wrote, as JSON. ValueError for anything else."""
        return read_json(self.stdout)


def read_json(data: bytes | str) -> Any:
    """A JSON document out of a container. ValueError for anything else, however deeply it is nested."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


@dataclass(frozen=True)
class Mount:
    """One mount of a container. ``source`` is a host path (bind) or the name of a volume (volume).

    ``create``: the engine makes a folder that is not there; it is root's then.
    """

    source: str
    target: str
    kind: str = "bind"
    read_only: bool = False
    create: bool = False


@dataclass(frozen=True)
class Port:
    """A published port."""

    host: int
    container: int
    address: str = ""
    protocol: str = "tcp"

    def __str__(self) -> str:
        head = f"{self.address}:" if self.address not in ("", "0.0.0.0", "::") else ""
        return f"{head}{self.host}->{self.container}/{self.protocol}"


@dataclass(frozen=True)
class Image:
    """An image that the engine has."""

    id: str
    labels: Mapping[str, str]
    created: str
    size: int
    architecture: str
    repo_tags: tuple[str, ...]
    env: Mapping[str, str]
    layers: tuple[str, ...] = ()  # digests of what they hold: the same in every store, unlike the id
    repo_digests: tuple[str, ...] = ()  # name@sha256:..., where it was pulled or pushed; none: it was made here
    folders: tuple[str, ...] = ()  # of the layers' files, where the store has one for each, lowest first


@dataclass(frozen=True)
class Container:
    """A container. ``health`` is "" where no health check is defined; ``service`` is "" outside Compose."""

    id: str
    name: str
    service: str
    state: str
    health: str
    exit_code: int
    image_id: str
    labels: Mapping[str, str]
    env: Mapping[str, str]
    mounts: tuple[Mount, ...]
    ports: tuple[Port, ...]
    started_at: str
    restarts: int = 0
    restart_policy: str = ""  # as Docker names it; "" = no
    oom_killed: bool = False
    error: str = ""
    user: str = ""  # as configured: UID, UID:GID or a name; "" = root
    gpu: bool = False  # it has NVIDIA devices

    @property
    def one_off(self) -> bool:
        """True for what `docker compose run` made."""
        return self.labels.get(COMPOSE_ONE_OFF, "").lower() == "true"

    @property
    def running(self) -> bool:
        """True while its main process lives."""
        return self.state in ("running", "paused")


@dataclass(frozen=True)
class EngineInfo:
    """What the engine says about itself and its machine. ``memory`` is in bytes."""

    version: str
    api_version: str
    arch: str
    runtimes: tuple[str, ...]
    cdi_devices: tuple[str, ...]
    data_root: str
    memory: int
    cpus: int
    endpoint: str
    name: str = ""
    product: str = "Docker"  # or Podman
    driver: str = ""  # that keeps the images: overlay2, overlay, vfs, ...
    rootless: bool = False  # root in its containers is the user who runs it
    containerd_store: bool = False  # images are kept as they were pulled or pushed, by containerd
    remapped: bool = False  # userns-remap: the numbers of users in its containers are others on the machine
