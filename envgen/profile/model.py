"""The frozen model of a project file. Past the loader there is nothing else: no dicts, no YAML nodes.

Every field carries its documentation in ``key(...)``: binding, defaults, the JSON Schema and docs/profile.md are all
generated from these classes, so what stands here is what a user reads. Field types are limited to what ``shape.py``
reads: scalars, the value types of ``values.py``, enums, tuples, mappings from str, records of this module, ``| None``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from envgen.profile import patterns as p
from envgen.profile.keys import key
from envgen.profile.model_services import ArgValue as ArgValue
from envgen.profile.model_services import Cluster as Cluster
from envgen.profile.model_services import Health as Health
from envgen.profile.model_services import ModelRef as ModelRef
from envgen.profile.model_services import Mount as Mount
from envgen.profile.model_services import Phases as Phases
from envgen.profile.model_services import Ready as Ready
from envgen.profile.model_services import Service as Service
from envgen.profile.model_services import Variant as Variant
from envgen.profile.model_sources import ORIGIN_KINDS as ORIGIN_KINDS
from envgen.profile.model_sources import Input as Input
from envgen.profile.model_sources import Install as Install
from envgen.profile.model_sources import Origin as Origin
from envgen.profile.model_sources import Repository as Repository
from envgen.profile.model_sources import Source as Source
from envgen.profile.values import (
    ByteSize,
    ContainerPath,
    CudaArchList,
    DockerLine,
    HostPath,
    ImageRef,
    MaxJobs,
    own_path,
)


class Mode(Enum):
    DEVELOPMENT = "development"
    PRODUCTION = "production"


class GpuMode(Enum):
    AUTO = "auto"
    REQUIRED = "required"
    ALL = "all"
    CDI = "cdi"
    NONE = "none"

    @property
    def asks_engine(self) -> bool:
        """Whether the engine decides, at each start, which way a GPU is given."""
        return self in (GpuMode.AUTO, GpuMode.REQUIRED)


class Platform(Enum):
    ARM64 = "linux/arm64"
    AMD64 = "linux/amd64"


@dataclass(frozen=True)
class Base:
    image: ImageRef = key("The image that everything starts from.")
    python: str = key("The interpreter of the base image.", "python3", item=p.PROGRAM)
    apt: tuple[str, ...] = key(
        "Debian packages that bring Python, where the base image has none: python3, python3-dev, python3-pip.",
        (),
        item=p.APT_NAME,
    )
    platform: Platform | None = key("The platform to build for; unset: the engine's own.", None)


@dataclass(frozen=True)
class TorchArch:
    """Another list for torch, and why: two lists without an explanation drift apart."""

    arch_list: CudaArchList = key(
        "GPU architectures for TORCH_CUDA_ARCH_LIST: vLLM's build and torch's own extensions."
    )
    reason: str = key("Why it differs from cuda.arch_list.", item=p.SENTENCE)


@dataclass(frozen=True)
class Cuda:
    arch_list: CudaArchList = key("GPU architectures, separated by one space: 12.1a for GB10.")
    home: ContainerPath = key(
        "The one spelling of CUDA_HOME. FlashInfer writes it into build.ninja; another one recompiles all.",
        ContainerPath("/usr/local/cuda"),
    )
    torch: TorchArch | None = key(
        "Another list for torch alone, with the reason. torch 2.10 knows 12.1a and no 12.1f, FlashInfer both.", None
    )
    fp4: bool = key("The kernels use FP4 instructions, which 10.x and later offer only with the suffix a or f.", True)


@dataclass(frozen=True)
class Build:
    max_jobs: MaxJobs = key(
        "Compilers at once, in builds and in JIT: a number, or auto. Either way each waits until its memory is free.",
        MaxJobs(None),
    )
    nvcc_threads: int | None = key(
        "Threads inside one nvcc (FLASHINFER_NVCC_THREADS, NVCC_THREADS), each for one arch; unset: 1 for one arch, at "
        "most 4 for several.",
        None,
        low=1,
        high=64,
    )
    ccache: bool = key("Compile through ccache, kept between builds.", True)
    ccache_size: ByteSize = key("How large ccache's cache may grow (CCACHE_MAXSIZE).", ByteSize(50 << 30))
    wheelhouse: HostPath | None = key(
        "A folder of wheels on this machine that pip may also use (set it in envgen.local.yaml).", None
    )


@dataclass(frozen=True)
class Network:
    ca_certificates: HostPath | None = key(
        "A PEM file of your company's CAs on this machine. A secret of builds, mounted at run time; never stored.",
        None,
    )
    pass_proxy: bool = key("Hand HTTP_PROXY, HTTPS_PROXY and NO_PROXY of your shell to builds and services.", True)


@dataclass(frozen=True)
class Apt:
    build: tuple[str, ...] = key("Debian packages that builds need.", (), item=p.APT_NAME)
    runtime: tuple[str, ...] = key("Debian packages for the finished image; installed last.", (), item=p.APT_NAME)


@dataclass(frozen=True)
class Pip:
    tools: tuple[str, ...] = key("Python packages for the image, such as fastsafetensors.", (), item=p.REQUIREMENT)
    deps: tuple[str, ...] = key(
        "Packages installed before the sources (their run-time dependencies).", (), item=p.REQUIREMENT
    )
    override: tuple[str, ...] = key(
        "Dependencies switched off: never installed, even if another package requires them.", (), item=p.DISTRIBUTION
    )
    remove: tuple[str, ...] = key(
        "Packages of the base image that are uninstalled first, and never come back as a dependency.",
        (),
        item=p.DISTRIBUTION,
    )
    protect: tuple[str, ...] = key(
        "Packages of the base image that no installation may replace; a build that changes one fails.",
        ("torch", "torchvision", "torchaudio", "triton", "flash-attn"),
        item=p.DISTRIBUTION,
    )


@dataclass(frozen=True)
class DockerfileExtra:
    """Lines of the user's own, each in a marked place of the Dockerfile."""

    base: tuple[DockerLine, ...] = key("In the stage that all others are made from, behind apt.build.", ())
    end: tuple[DockerLine, ...] = key("In the finished image, before the check that pip.protect kept its packages.", ())

    @property
    def sources(self) -> tuple[str, ...]:
        """What of the project these lines copy."""
        return tuple(own_path(path) for line in (*self.base, *self.end) for path in line.sources)


@dataclass(frozen=True)
class Encoding:
    url: str = key("Where the file comes from.", item=p.HTTP_URL)
    sha256: str = key("Its SHA-256.", item=p.SHA256)
    mirrors: tuple[str, ...] = key("Other addresses, tried in order.", (), item=p.HTTP_URL)
    file: HostPath | None = key("A copy inside the project folder, tried first.", None)


@dataclass(frozen=True)
class Tiktoken:
    directory: ContainerPath = key(
        "Where the files lie in the image (TIKTOKEN_ENCODINGS_BASE).", ContainerPath("/workspace/tiktoken_encodings")
    )
    encodings: Mapping[str, Encoding] = key("One entry a vocabulary: o200k_base, ...", {}, names=p.NAME)


@dataclass(frozen=True)
class Cache:
    path: ContainerPath = key("Where the container sees it.")
    host: HostPath | None = key("A folder on this machine; unset: a named volume.", None)
    namespace: bool = key("Of the cache `flashinfer`: a separate place for each source, CUDA, torch and arch.", True)


@dataclass(frozen=True)
class Ulimit:
    soft: int = key("The soft limit; -1 = unlimited.", low=-1)
    hard: int = key("The hard limit; -1 = unlimited.", low=-1)


@dataclass(frozen=True)
class Machine:
    """One of several machines: a fact about these machines, so it belongs into envgen.local.yaml."""

    address: str = key("Its IPv4 address on the cable between the machines.", item=p.IPV4)
    interface: str = key("The network interface that has this address.", item=p.INTERFACE)
    context: str = key(
        "The Docker context that reaches its engine; default: this machine's own.", "default", item=p.CONTEXT
    )
    rdma: tuple[str, ...] = key(
        "RDMA devices for NCCL (NCCL_IB_HCA), in the same order on all machines; none: plain TCP.", (), item=p.INTERFACE
    )
    caches: Mapping[str, HostPath] = key(
        "Where the host folders of caches are there, by the cache's name.", {}, names=p.NAME
    )


@dataclass(frozen=True)
class Profile:
    """One environment. ``name`` and ``project`` are set by the loader; all else comes from the files and overrides."""

    name: str
    project: str
    mode: Mode = key("development: sources are mounted. production: sources are baked in.")
    base: Base = key("The base image.")
    cuda: Cuda = key("CUDA.")
    variant: str = ""  # the one that is laid over it
    instance: str = ""  # which copy of the project; committed files are rendered without
    description: str = key("One line about this profile.", "")
    dockerfile: str = key(
        "The file that `envgen render` writes; unset: Dockerfile for the first profile that names none, "
        "Dockerfile.NAME for each further one.",
        "Dockerfile",
        item=p.DOCKERFILE,
    )
    image: ImageRef | None = key("The name of the built image; unset: PROJECT:PROFILE.", None)
    dockerfile_extra: DockerfileExtra = key(
        "RUN, COPY, ENV, ARG and LABEL lines of your own. What a RUN fetches is in no lock.", DockerfileExtra()
    )
    compose: HostPath | None = key(
        "A Compose file of yours, in the project, that every command lays over the rendered one. Its relative paths "
        "start at compose/.",
        None,
    )
    build: Build = key("How images are built.", Build())
    network: Network = key("Company CAs and proxies.", Network())
    apt: Apt = key("Debian packages.", Apt())
    pip: Pip = key("Python packages.", Pip())
    tiktoken: Tiktoken = key("Vocabulary files for gpt-oss.", Tiktoken())
    sources: Mapping[str, Source] = key("What is developed or built: flashinfer, vllm, ...", {}, names=p.NAME)
    python_path: tuple[ContainerPath, ...] = key("PYTHONPATH, in front of what the base image has.", ())
    env: Mapping[str, Mapping[str, str]] = key(
        "Groups of run-time variables; the same for every service.", {}, names=p.NAME
    )
    env_groups: tuple[str, ...] | None = key(
        "Which groups of env are in use; unset: all. The others are there to be chosen.", None, item=p.NAME
    )
    secrets: tuple[str, ...] = key(
        "Variables of your shell, or of `.env` beside this file, that services get at run time only.",
        (),
        item=p.ENV_NAME,
    )
    caches: Mapping[str, Cache] = key("Folders that outlive a container.", {}, names=p.NAME)
    gpu: GpuMode = key(
        "auto: a GPU where the engine offers one, else none, with a warning; required: nothing starts without one; "
        "all: by the NVIDIA runtime; cdi: by CDI (nvidia.com/gpu=all); none.",
        GpuMode.AUTO,
    )
    ipc: str = key("The IPC namespace.", "private", item=p.IPC)
    shm_size: ByteSize | None = key("Size of /dev/shm, where ipc is not host.", None)
    ulimits: Mapping[str, Ulimit] = key("Limits of the container.", {}, names=p.ULIMIT)
    working_dir: ContainerPath = key("The folder that services start in.", ContainerPath("/workspace"))
    reproducible: bool = key(
        "Two locked builds give the same image ID, not only the same content; every step takes a little longer.", False
    )
    services: Mapping[str, Service] = key("What can be started: dev, serve, ...", {}, names=p.NAME)
    nodes: Mapping[str, Machine] = key(
        "Machines that services can share (`cluster`), by a name of yours.", {}, names=p.NODE
    )
    variants: Mapping[str, Variant] = key(
        "Other ways to run the same image (`envgen up SERVICE --variant NAME`): what differs. No image is rebuilt.",
        {},
        names=p.NAME,
    )

    @property
    def image_name(self) -> str:
        """The full name of the built image."""
        plain = str(self.image) if self.image else f"{self.project}:{self.name}"
        if not self.instance or "@" in plain:
            return plain
        has_tag = ":" in plain.rpartition("/")[2]
        return f"{plain}{'--' if has_tag else ':'}{self.instance}"

    @property
    def compose_name(self) -> str:
        """The Compose project's name."""
        # Two dashes: no profile's name has them, so `dev` in the copy `cpu` is not the profile `dev-cpu`.
        return f"{self.shared_name}--{self.instance}" if self.instance else self.shared_name

    @property
    def shared_name(self) -> str:
        """What is the same in all copies of the project on an engine: the caches are named by it."""
        return f"{self.project}-{self.name}"

    @property
    def compose_file(self) -> str:
        """The rendered Compose file, relative to the project."""
        return f"compose/{self.name}.yaml"

    def user_of(self, service: str) -> str:
        """The user that a service runs as: host, root, UID[:GID], or "" for the image's own."""
        described = self.services.get(service)
        default = "host" if self.mounted_sources else ""
        return (described.user if described else None) or default

    @property
    def opens_folders(self) -> bool:
        """Whether the image must let a user who is not root write to homes, caches and the overlay."""
        return bool(self.mounted_sources) or any(self.user_of(name) not in ("", "root") for name in self.services)

    @property
    def mounted_sources(self) -> Mapping[str, Source]:
        """The sources whose checkout is mounted rather than baked in."""
        return {name: source for name, source in self.sources.items() if source.origin.kind == "checkout"}


@dataclass(frozen=True)
class Project:
    """A whole project file. ``root`` is the folder that it is in."""

    name: str
    default_profile: str
    profiles: Mapping[str, Profile]
    file: Path
    root: Path
