"""What a Docker Engine gives us, as frozen values, and the Protocol that every other room codes against."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from envgen.engine.leftovers import Leftover

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
    rootless: bool = False  # root in its containers is the user who runs it
    containerd_store: bool = False  # images are kept as they were pulled or pushed, by containerd
    remapped: bool = False  # userns-remap: the numbers of users in its containers are others on the machine


class Engine(Protocol):
    """The Docker Engine. All methods raise EngineError when the engine itself is the trouble."""

    def info(self) -> EngineInfo:
        """The engine's own facts (asked once, then remembered)."""

    def image(self, name: str) -> Image | None:
        """The image of that name or id; None if it isn't there. Never pulls."""

    def images(self) -> tuple[Image, ...]:
        """All images."""

    def save_image(self, name: str, path: Path, timeout: float = 1800) -> None:
        """Write an image into a file, as `docker image save` does."""

    def load_image(self, parts: Iterator[bytes]) -> None:
        """Take an image from an archive. EngineError when the engine, or what gives the parts, is the trouble."""

    def has_whole_image(self, name: str) -> bool:
        """False where blobs of an image are missing, or where the engine is too old to be asked."""

    def tag_image(self, name: str, new: str) -> None:
        """Give an image one more name; another image loses it."""

    def containers(
        self, project: str | None = None, service: str | None = None, all: bool = False
    ) -> tuple[Container, ...]:
        """Containers, of a Compose project and service if named; only running ones unless ``all``.

        One-off containers (`docker compose run`) are in a project, but are not containers of a service.
        """

    def container(self, name: str) -> Container | None:
        """The container of that name or id; None if it isn't there."""

    def inspect(self, name: str) -> Mapping[str, Any] | None:
        """All that the engine knows about a container, in its own words; None if it isn't there."""

    def logs(
        self, container_id: str, *, tail: int | None = 30, since: str = "", until: str = "", timestamps: bool = False
    ) -> str:
        """The last lines (None: all) that a container wrote, stdout and stderr together, in the order they came.

        ``since`` and ``until`` are instants in the engine's spelling (seconds, a dot, nanoseconds).
        """

    def exec(
        self,
        container_id: str,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        user: str = "",
        workdir: str = "",
        timeout: float = 60,
        hold: bool = False,
        on_line: Callable[[str], None] | None = None,
    ) -> ExecResult:
        """Run a program in a running container. EngineError on time-out (the program is killed) or over-long output.

        ``hold``: its stdin stays open until it ends; that it closes before means that envgen is gone. ``on_line`` gets
        each line as it is written; nothing of it is in the result then.
        """

    def run_once(
        self,
        image: str,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        mounts: Sequence[Mount] = (),
        env: Mapping[str, str] | None = None,
        user: str = "",
        unmapped: bool = False,
        network: str = "none",
        timeout: float = 60,
        memory: int = MEMORY,
        ulimits: Mapping[str, tuple[int, int]] | None = None,
        hold: bool = False,
        on_line: Callable[[str], None] | None = None,
    ) -> ExecResult:
        """Run a program in a throw-away container that is always removed; the image's entrypoint is bypassed.

        It gets ``memory`` bytes, no swap, at most ``PIDS`` processes, and ``ulimits`` (soft, hard). ``on_line`` hears
        each line as it is written.
        ``unmapped``: its users are those of the machine under userns-remap too, as any that is not root always is.
        """

    def stream_once(
        self, image: str, argv: Sequence[str], *, stdin: bytes, mounts: Sequence[Mount] = ()
    ) -> Generator[bytes, None, None]:
        """What a program writes to stdout, as root in a throw-away container without a network. Its stdin stays open.

        EngineError, at the end, when it fails. Closed early, it removes the container.
        """

    def leftovers(self) -> tuple[Leftover, ...]:
        """Throw-away containers that a killed envgen left behind, oldest first."""

    def remove_leftovers(self, found: Sequence[Leftover]) -> tuple[tuple[Leftover, str], ...]:
        """Remove these, running or not, with their anonymous volumes; those that stay, and why."""

    def volume(self, name: str) -> str | None:
        """Where a named volume is on the engine's machine; None if there is no such volume."""

    def volume_labels(self, name: str) -> Mapping[str, str] | None:
        """The labels of a named volume; None if there is no such volume."""

    def create_volume(self, name: str, labels: Mapping[str, str]) -> None:
        """Make an empty volume; nothing happens where there is one of that name."""

    def volumes(self, text: str) -> tuple[str, ...]:
        """The names of all volumes that have ``text`` in their name, sorted."""

    def volumes_of(self, project: str) -> tuple[str, ...]:
        """The names of the volumes that Compose made for a project."""

    def volume_sizes(self) -> Mapping[str, int]:
        """How many bytes each volume holds. Slow: the engine looks at every file."""

    def dangling(self, label: str) -> tuple[Image, ...]:
        """Images without a name that carry ``label`` (KEY or KEY=VALUE)."""

    def remove_image(self, image_id: str) -> str:
        """Remove an image that nothing uses. Returns why it stayed; empty: it is gone."""

    def remove_volume(self, name: str) -> None:
        """Delete a volume and what is in it. EngineError while any container, running or not, has it mounted."""

    def networks_of(self, project: str) -> tuple[str, ...]:
        """The names of the networks that Compose made for a project."""

    def remove_network(self, name: str) -> None:
        """Delete a network. EngineError while any container is in it."""
