"""The answers of a Docker Engine as frozen values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envgen.binding import JsonDict, JsonObject
from envgen.text import whole_number

COMPOSE_PROJECT = "com.docker.compose.project"
COMPOSE_SERVICE = "com.docker.compose.service"
COMPOSE_ONE_OFF = "com.docker.compose.oneoff"
COMPOSE_VOLUME = "com.docker.compose.volume"
SERVER = "/opt/envgen/libexec/server"  # before a server's command: docker/runtime/libexec/server

# Bytes; an endless writer must not fill the memory of envgen.
OUTPUT_LIMIT = 10 << 20

LOG_LIMIT = 16 << 20  # bytes of a container's log, from its end

# Limits of a temporary container, which reads files of strangers (a cache, an archive).
MEMORY = 4 << 30
PIDS = 4096


# What reading an unexpected document raises: one from a container may contain anything.
MISSHAPEN = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


@dataclass(frozen=True)
class ExecResult:
    """The exit code and output of a program, here or in a container."""

    code: int
    stdout: bytes
    stderr: bytes

    def document(self) -> Any:
        """Its stdout as JSON. Raises ValueError."""
        return read_json(self.stdout)


@dataclass(frozen=True)
class ProcessState:
    """A process of a container, numbered as on the engine's machine. ``memory``: resident bytes."""

    pid: int
    parent: int
    state: str  # ps's letters; the first is Z for a zombie
    memory: int
    command: str

    @property
    def zombie(self) -> bool:
        """Whether it has ended and its parent has not collected its exit status."""
        return self.state.startswith("Z")


def process_of(row: Sequence[str]) -> ProcessState:
    """A process from a row of `docker top`, with ps's columns pid, ppid, stat, rss, args."""
    pid, parent, state, kilobytes, command = row
    return ProcessState(int(pid), int(parent), state, int(kilobytes) << 10, command)


def read_json(data: bytes | str) -> Any:
    """A JSON document from a container. Raises ValueError, for too deep a nesting, too."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


@dataclass(frozen=True)
class ContainerMount:
    """One mount of a container. ``source`` is a host path (bind) or the name of a volume (volume)."""

    source: str
    target: str
    kind: str = "bind"
    read_only: bool = False


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
    layers: tuple[str, ...] = ()  # digests of their content: the same in every store, unlike the id
    repo_digests: tuple[str, ...] = ()  # name@sha256:...; none for an image that was built here
    tagged: str = (
        ""  # the time of its tag: a locked build sets ``created`` to the time of its inputs
    )
    committed: bool = False  # made of a container by `docker commit`, which keeps the labels

    @property
    def content(self) -> str:
        """What it is made of, to be compared. Unlike the ID, it is the same in every engine's
        store.
        """
        return str((self.layers, sorted(self.env.items()), self.architecture))

    @property
    def digests(self) -> set[str]:
        """Its ID, and its digests in registries."""
        digests = {self.id}
        for name in self.repo_digests:
            _, _, digest = name.rpartition("@")
            digests.add(digest)
        return digests


# of docker/runtime/libexec/server: the server ended with 0, and Docker had not asked it to stop
BY_ITSELF = 75
KILLED = 137  # by SIGKILL: of a person or a program, or of the machine's memory
WEDGED = 76  # envgen-health found that it generated nothing, and end-wedged ended it


@dataclass(frozen=True)
class Container:
    """A container. ``health`` is "" where no health check is defined; ``service`` is "" outside
    Compose.
    """

    id: str
    name: str
    service: str
    state: str
    health: str
    exit_code: int
    image_id: str
    labels: Mapping[str, str]
    env: Mapping[str, str]
    mounts: tuple[ContainerMount, ...]
    ports: tuple[Port, ...]
    started_at: str
    restarts: int = 0
    restart_policy: str = ""  # as Docker names it; "" = no
    oom_killed: bool = False
    error: str = ""
    user: str = ""  # as configured: UID, UID:GID or a name; "": root
    gpu: bool = False  # it has NVIDIA devices
    memory: int = 0  # its own limit in bytes; 0: none
    finished_at: str = ""  # when its program ended last; "": never
    server: bool = False  # docker/runtime/libexec/server runs its command

    @property
    def one_off(self) -> bool:
        """True for a container of `docker compose run`."""
        return self.labels.get(COMPOSE_ONE_OFF, "").lower() == "true"

    @property
    def active(self) -> bool:
        """Whether Docker runs it: also between two runs of its program."""
        return self.running or self.state == "restarting"

    @property
    def running(self) -> bool:
        """True while its main process runs or is paused."""
        return self.state in ("running", "paused")

    @property
    def own_code(self) -> int:
        """The exit code of its program."""
        return 0 if self.server and self.exit_code == BY_ITSELF else self.exit_code

    @property
    def how_ended(self) -> str:
        """As a continuation of "its process"."""
        if self.oom_killed:
            return "was killed because memory ran out"
        killed = "was killed (SIGKILL): it " if self.own_code == KILLED else ""
        return f"{killed}exited with code {self.own_code}"


@dataclass(frozen=True)
class ContainerRow:
    """A container as the engine lists it. ``ports``: of the machine, that it publishes."""

    id: str
    name: str
    labels: Mapping[str, str]
    ports: frozenset[int] = frozenset()


@dataclass(frozen=True)
class EngineInfo:
    """Facts about the engine and its machine. ``memory`` is in bytes."""

    version: str
    api_version: str
    arch: str
    runtimes: tuple[str, ...]
    cdi_devices: tuple[str, ...]
    memory: int
    cpus: int
    endpoint: str
    name: str = ""
    kernel: str = ""
    driver: str = ""  # of its storage: overlay2, overlay, vfs, ...
    rootless: bool = False  # root in its containers is the user who runs it
    containerd_store: bool = False  # containerd stores the images

    @property
    def local(self) -> bool:
        """True where the engine is certainly on this machine: paths and ports are the same for
        both.
        """
        return self.endpoint.startswith("unix://")


def device_request(device: JsonObject) -> JsonDict:
    """The API's form of a device that Compose reserves (`deploy.resources.reservations.devices`)."""
    named = list(device.get("device_ids") or ())
    capabilities = [list(device["capabilities"])]
    return {
        "Driver": device["driver"],
        "Count": 0 if named else -1,
        "DeviceIDs": named,
        "Capabilities": capabilities,
    }


# From the engine's JSON. Only the functions below know the API's field names.

MINIMUM_ENGINE = 25  # its BuildKit (0.12) is the first with ADD --checksum
MINIMUM_API = [1, 44]  # of that engine; builds from source have no number of a release
# The kernel's name of an architecture -> Go's, which images use.
_GO_ARCH = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class _Fields:
    """A document of the engine, in which a field that is null is as one that is not there."""

    document: JsonObject

    def at(self, path: str) -> Any:
        """The value of a field, such as ``State.Health.Status``; None where there is none."""
        value: Any = self.document
        for name in path.split("."):
            value = (value or {}).get(name)
        return value

    def text(self, path: str) -> str:
        value = self.at(path)
        return "" if value is None else str(value)

    def texts(self, path: str) -> tuple[str, ...]:
        return tuple(map(str, self.at(path) or ()))

    def number(self, path: str) -> int:
        return int(self.at(path) or 0)

    def time(self, path: str) -> str:
        """A time; "" for the year 1, which Go writes where there is none."""
        text = self.text(path)
        return "" if text.startswith("0001-") else text

    def environment(self, path: str) -> dict[str, str]:
        pairs = self.at(path) or ()
        return dict(pair.partition("=")[::2] for pair in pairs if isinstance(pair, str))


def info_of(info: JsonObject, version: JsonObject, endpoint: str) -> EngineInfo:
    """From ``GET /info`` and ``GET /version``."""
    answer = _Fields(info)
    arch = answer.text("Architecture")
    devices = answer.at("DiscoveredDevices") or ()
    snapshotter = ["driver-type", "io.containerd.snapshotter.v1"]
    return EngineInfo(
        version=answer.text("ServerVersion"),
        driver=answer.text("Driver"),
        api_version=_Fields(version).text("ApiVersion"),
        arch=_GO_ARCH.get(arch, arch),
        runtimes=tuple(sorted(answer.at("Runtimes") or ())),
        cdi_devices=tuple(str(one.get("ID")) for one in devices if one.get("Source") == "cdi"),
        memory=answer.number("MemTotal"),
        cpus=answer.number("NCPU"),
        endpoint=endpoint,
        name=answer.text("Name"),
        kernel=answer.text("KernelVersion"),
        rootless="name=rootless" in answer.texts("SecurityOptions"),
        containerd_store=snapshotter in (answer.at("DriverStatus") or ()),
    )


def row_of(document: JsonObject) -> ContainerRow:
    """From a row of ``GET /containers/json``."""
    answer = _Fields(document)
    names = [name.lstrip("/") for name in answer.texts("Names")]
    ports = set()
    for port in answer.at("Ports") or ():
        ports.add(int(port.get("PublicPort") or 0))
    return ContainerRow(
        id=str(document["Id"]),
        name=min(names, default=""),
        labels=texts(answer.at("Labels")),
        ports=frozenset(ports),
    )


def image_of(document: JsonObject) -> Image:
    """From ``GET /images/NAME/json``."""
    answer = _Fields(document)
    # BuildKit leaves its name in each step's comment, and `docker commit` the engine's version.
    comment = str(document.get("Comment", "buildkit"))
    imported = comment.startswith("Imported from")  # its labels were given to `docker import`
    built = comment.startswith("buildkit") and not answer.text("DockerVersion")
    return Image(
        id=answer.text("Id"),
        labels=texts(answer.at("Config.Labels")),
        created=answer.text("Created"),
        size=answer.number("Size"),
        architecture=answer.text("Architecture"),
        repo_tags=answer.texts("RepoTags"),
        env=answer.environment("Config.Env"),
        layers=answer.texts("RootFS.Layers"),
        repo_digests=answer.texts("RepoDigests"),
        tagged=answer.time("Metadata.LastTagTime"),
        committed=not (imported or built),
    )


def container_of(document: JsonObject) -> Container:
    """From ``GET /containers/ID/json``."""
    answer = _Fields(document)
    labels = texts(answer.at("Config.Labels"))
    host = answer.at("HostConfig") or {}
    return Container(
        id=answer.text("Id"),
        name=answer.text("Name").removeprefix("/"),
        service=labels.get(COMPOSE_SERVICE, ""),
        state=answer.text("State.Status"),
        health=answer.text("State.Health.Status").removeprefix("none"),
        exit_code=answer.number("State.ExitCode"),
        image_id=answer.text("Image"),
        labels=labels,
        env=answer.environment("Config.Env"),
        mounts=tuple(map(_mount, answer.at("Mounts") or ())),
        ports=_ports(answer.at("NetworkSettings.Ports") or {}),
        started_at=answer.text("State.StartedAt"),
        restarts=answer.number("RestartCount"),
        restart_policy=answer.text("HostConfig.RestartPolicy.Name").removeprefix("no"),
        oom_killed=bool(answer.at("State.OOMKilled")),
        error=answer.text("State.Error"),
        user=answer.text("Config.User"),
        gpu=_has_gpu(host),
        memory=max(0, answer.number("HostConfig.Memory")),
        finished_at=answer.time("State.FinishedAt"),
        server=answer.texts("Config.Cmd")[:1] == (SERVER,),
    )


def _has_gpu(host: JsonObject) -> bool:
    for request in host.get("DeviceRequests") or ():
        if "gpu" in str(request):
            return True
    for device in host.get("Devices") or ():
        path = str(device.get("PathOnHost"))
        if path.startswith("/dev/nvidia"):
            return True
    return bool(host.get("Runtime") == "nvidia")


def too_old(version: JsonObject) -> str:
    """The reason why envgen cannot use this engine; "" where it can. From ``GET /version``."""
    release = str(version.get("Version", ""))
    needs = f"envgen needs Docker Engine {MINIMUM_ENGINE} or newer"
    if "podman" in str(version.get("Components")).lower():
        return f"this is Podman {release}, which has no BuildKit; {needs}"
    parts = str(version.get("ApiVersion", "")).split(".")
    api = [whole_number(part) or 0 for part in parts]
    if api < MINIMUM_API:
        return f"this Docker Engine is {release or 'of no version'}; {needs}"
    return ""


def texts(labels: Any) -> dict[str, str]:
    """The engine's labels, or null, as a mapping."""
    return {name: str(value) for name, value in (labels or {}).items()}


def _mount(document: JsonObject) -> ContainerMount:
    kind = str(document.get("Type", ""))
    # A volume's Source is a folder of the engine; Compose uses its name.
    key = "Name" if kind == "volume" else "Source"
    source = str(document.get(key) or "")
    target = str(document.get("Destination", ""))
    read_only = not document.get("RW", True)
    return ContainerMount(source, target, kind, read_only)


def _ports(bound: JsonObject) -> tuple[Port, ...]:
    unique = {}
    for inside, bindings in bound.items():
        number, _, protocol = inside.partition("/")
        for binding in bindings or ():
            host = int(binding.get("HostPort") or 0)
            address = str(binding.get("HostIp") or "")
            port = Port(host, int(number), address, protocol)
            # Docker lists a published port for IPv4 and IPv6: keep one.
            unique[str(port)] = port
    return tuple(sorted(unique.values(), key=lambda port: (port.container, port.host)))
