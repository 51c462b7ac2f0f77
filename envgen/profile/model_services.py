"""Services in the model of a project file: what runs, and how to check that it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from envgen.profile import patterns as p
from envgen.profile.keys import key
from envgen.profile.values import ByteSize, ContainerPath, Duration, GpuId, HostPath, PortMapping


@dataclass(frozen=True)
class Health:
    """How Docker itself watches the service: ``command`` or ``http``."""

    http: str | None = key("A path that must answer 200, such as /health.", None, item=p.URL_PATH)
    port: int = key("The port inside the container, for http.", 8000, low=1, high=65535)
    command: tuple[str, ...] = key("A command that must end with 0, one word an item.", ())
    interval: Duration = key("Time between checks.", Duration(10))
    timeout: Duration = key("A check that takes longer has failed.", Duration(10))
    retries: int = key("Failures in a row that make it unhealthy.", 3, low=1, high=100)
    start_period: Duration = key("Failures in this time don't count.", Duration(1800))


@dataclass(frozen=True)
class Phases:
    """How long each phase of a start may take; unset: only the whole is limited."""

    start: Duration | None = key("From the container's start until weights are loaded (or the port answers).", None)
    weights: Duration | None = key("While weights are loaded.", None)
    compile: Duration | None = key(
        "Compiling kernels, capturing graphs: from the weights until the port answers.", None
    )
    answer: Duration | None = key("From the port's first answer until the prompt is completed.", None)


@dataclass(frozen=True)
class Ready:
    """What `envgen up` waits for after Docker calls the container healthy."""

    timeout: Duration = key("Give up after this long.", Duration(3600))
    phases: Phases = key("Limits for single phases; the log shows which phase it is.", Phases())
    model: str | None = key("A name that /v1/models must list, and that must complete a prompt.", None)
    port: int | None = key("The container's port that answers HTTP; it must be published.", None, low=1, high=65535)
    prompt: str = key("What must be completed, at temperature 0.", "The capital of France is")
    expect_text: str | None = key("What the completion must contain; unset: any text will do.", None)
    expect: Mapping[str, str] = key(
        "What the log must show by then: regular expressions (RE2), each under a name of yours, such as attention.",
        {},
        names=p.NAME,
    )
    forbid: Mapping[str, str] = key("What the log must not show: the same.", {}, names=p.NAME)


@dataclass(frozen=True)
class ModelRef:
    """The weights that a service loads: a repository on the Hugging Face Hub at one revision."""

    repo: str = key("The repository, such as openai/gpt-oss-120b.", item=p.HUB_REPO)
    revision: str = key("A branch, tag or commit. `envgen lock` pins its commit.", "main", item=p.HUB_REVISION)
    ignore: tuple[str, ...] = key(
        "Files that `envgen model pull` leaves out: gpt-oss has its weights three times.",
        ("original/*", "metal/*"),
        item=p.HUB_IGNORE,
    )


@dataclass(frozen=True)
class Cluster:
    """Several machines that serve one model together, by vLLM's own multi-node mode."""

    nodes: tuple[str, ...] = key(
        "The machines, by their names below `nodes`. The first has rank 0 and the API.", item=p.NODE
    )
    port: int = key("Port of the first node where all ranks meet (--master-port).", 29501, low=1024, high=65535)
    on_failure: str = key(
        "What `envgen up --stay` does when a part of it fails: stop takes all down; restart:N then starts all again, N"
        " times at most.",
        "stop",
        item=p.ON_FAILURE,
    )

    @property
    def restarts(self) -> int:
        """How often all of it may be started again."""
        return int(self.on_failure.partition(":")[2] or 0)


@dataclass(frozen=True)
class Mount:
    """A file or folder of this machine in the container. ``TEXT``: the short form; `layers.py` spells it out."""

    host: HostPath = key("The file or folder on this machine. It must be there when the service starts.")
    path: ContainerPath = key("Where the container sees it.")
    read_only: bool = key("The container can't change it.", False)

    TEXT: ClassVar[str] = r"[^:\x00-\x1f\x7f]+:/[^:\x00-\x1f\x7f]*(:r[ow])?"
    EXAMPLE: ClassVar[str] = "~/models:/models:ro"


ArgValue = bool | str | tuple[str, ...]  # bind.py knows this alias by its name


@dataclass(frozen=True)
class Service:
    command: tuple[str, ...] = key("The program and its positional words, one word an item.")
    args: Mapping[str, ArgValue] = key(
        "Flags without their dashes. true: the bare flag; false: left out; a list: several words; a mapping: JSON.",
        {},
        names=p.FLAG,
    )
    env_groups: tuple[str, ...] | None = key(
        "Which of the groups in use it gets; unset: all of them.", None, item=p.NAME
    )
    env: Mapping[str, str] = key("Variables for this service alone.", {}, names=p.ENV_NAME)
    ports: tuple[PortMapping, ...] = key(
        "Published ports. With 127.0.0.1 this machine alone reaches one; without an address, as in Compose, the whole"
        " network does, past ufw. `127.0.0.1:auto:8000`: 8000 where it is free when the service starts, else the next"
        " one that is; it stays while the service runs.",
        (),
    )
    working_dir: ContainerPath | None = key("The folder it starts in.", None)
    user: str | None = key(
        "The user it runs as: host (who starts it, so that files in checkouts stay theirs), root, or UID[:GID]; unset:"
        " host where checkouts are mounted, else the image's own user, which is root.",
        None,
        item=p.USER,
    )
    interactive: bool = key("Keep a terminal open (a shell service).", False)
    cpuset: str | None = key("The CPUs that its programs run on, as in 0-9,15; unset: all.", None, item=p.CPUS)
    restart: str = key("no, or on-failure:N. `always` would wedge a host with unified memory.", "no", item=p.RESTART)
    health: Health | None = key("Docker's health check.", None)
    ready: Ready | None = key("What `envgen up` waits for.", None)
    model: ModelRef | None = key(
        "The weights it loads. `envgen model pull` fetches them, and `up` starts nothing until they are there.", None
    )
    cluster: Cluster | None = key("The machines that run it together; unset: one machine.", None)
    needs_memory: ByteSize | None = key(
        "Memory that must be free on the engine's machine before it is started (unified memory: the GPU's too).", None
    )
    mounts: Mapping[str, Mount] = key(
        "Files and folders of this machine, each by a name: keys below, or short as in Compose, HOST:CONTAINER[:ro].",
        {},
        names=p.NAME,
    )
    devices: tuple[str, ...] = key("Devices of this machine, such as /dev/infiniband.", (), item=p.DEVICE)
    cap_add: tuple[str, ...] = key("Rights that containers lack by default, such as IPC_LOCK.", (), item=p.CAPABILITY)
    network: str | None = key(
        "host: no network of its own. Each port that it listens on is the machine's; `ports` has no meaning then.",
        None,
        item=p.NETWORK,
    )
    shm_size: ByteSize | None = key("Size of its /dev/shm; unset: as in the profile.", None)
    gpu: tuple[GpuId, ...] | None = key("The GPUs that it gets, by number or UUID; []: none; unset: all.", None)
    labels: Mapping[str, str] = key("Labels of its container.", {}, names=p.LABEL)
    container_name: str | None = key(
        "A fixed name for its container: a second copy of the project can't start it beside the first; unset: "
        "PROJECT-PROFILE-SERVICE-1.",
        None,
        item=p.CONTAINER_NAME,
    )

    @property
    def argv(self) -> tuple[str, ...]:
        """The whole command: words, then flags in the order of the file."""
        words = list(self.command)
        for name, value in self.args.items():
            flag = f"--{name}" if len(name) > 1 else f"-{name}"
            if value is True:
                words.append(flag)
            elif isinstance(value, tuple):
                words += [flag, *value]
            elif value is not False:
                words += [flag, value]
        if self.model is not None and self.model.revision != "main" and "revision" not in self.args and self.is_vllm:
            words += ["--revision", self.model.revision]
        return tuple(words)

    @property
    def host_ports(self) -> tuple[PortMapping, ...]:
        """The machine's ports that it takes: what it publishes; with `network: host` the one that it listens on."""
        if self.network is None:
            return self.ports
        port = self.ready.port if self.ready and self.ready.port else None
        if port is None and self.health is not None and self.health.http is not None:
            port = self.health.port
        local = self.args.get("host") == "127.0.0.1"
        return (PortMapping(port, port, "127.0.0.1" if local else ""),) if port else ()

    @property
    def is_vllm(self) -> bool:
        """Whether the command is `vllm serve`."""
        return self.command[:2] == ("vllm", "serve")


@dataclass(frozen=True)
class Variant:
    """Another way to run the same image. Only ``description`` and ``changes`` hold what a file says.

    The other keys say what may be there; their values take effect by being merged into the profile (`layers.py`).
    ``changes``: each value that it sets, by its path.
    """

    changes: Mapping[str, str]
    description: str = key("One line about this variant.", "")
    env_groups: tuple[str, ...] | None = key("As in the profile.", None, item=p.NAME)
    env: Mapping[str, Mapping[str, str]] = key("As in the profile.", {}, names=p.NAME)
    services: Mapping[str, Service] = key("Services of the profile, with the keys that differ.", {}, names=p.NAME)
