"""The frozen model of a project file. Past the loader nothing sees dicts or YAML nodes.

Every field carries its documentation in ``key(...)``: binding, defaults, the JSON Schema and
docs/profile.md are all generated from these classes: users read these texts. Field types are
limited to what ``shape.py``
reads: scalars, the value types of ``values.py``, enums, tuples, mappings from str, records of this
module or of ``service.py``, ``| None``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import ClassVar

from envgen.profile import shape as p
from envgen.profile.service import Service
from envgen.profile.shape import key
from envgen.profile.values import (
    ByteSize,
    ContainerPath,
    CudaArchList,
    DockerLine,
    HostPath,
    ImageRef,
    MaxJobs,
    Pin,
    own_path,
    version_of_ref,
)
from envgen.text import shell_line


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
        """Whether the engine decides, at each start, how a container gets its GPUs."""
        return self in (GpuMode.AUTO, GpuMode.REQUIRED)


class Platform(Enum):
    ARM64 = "linux/arm64"
    AMD64 = "linux/amd64"


@dataclass(frozen=True)
class Base:
    image: ImageRef = key("The image that everything starts from.")
    python: str = key("The Python interpreter of the base image.", "python3", item=p.PROGRAM)
    apt: tuple[str, ...] = key(
        "Debian packages that bring Python, where the base image has none: python3, python3-dev, python3-pip.",
        (),
        item=p.APT_NAME,
    )
    platform: Platform | None = key("The platform to build for; unset: the engine's own.", None)


@dataclass(frozen=True)
class Cuda:
    arch_list: CudaArchList = key(
        "GPU architectures, separated by one space: 12.1a for GB10. Required, except with `gpu: none`. "
        "torch gets 12.1a for 12.1f, which it refuses.",
        CudaArchList(()),
    )
    # CUDA_HOME. FlashInfer writes it into build.ninja, so another path would recompile everything.
    HOME: ClassVar[ContainerPath] = ContainerPath("/usr/local/cuda")


@dataclass(frozen=True)
class Build:
    max_jobs: MaxJobs = key(
        "Compilers that run at once, in builds and in JIT: a number, or auto. Each waits until enough memory is free.",
        MaxJobs(None),
    )
    ccache: bool = key(
        "Compile through ccache; at most 50 GiB are kept between builds (CCACHE_MAXSIZE).", True
    )
    wheelhouse: HostPath | None = key(
        "A folder of wheels on this machine that pip may also use (set it in envgen.local.yaml).",
        None,
    )


@dataclass(frozen=True)
class Network:
    ca_certificates: HostPath | None = key(
        "A PEM file of your company's CAs on this machine: a secret in builds, a mount at run time; never stored.",
        None,
    )


@dataclass(frozen=True)
class Apt:
    build: tuple[str, ...] = key("Debian packages that builds need.", (), item=p.APT_NAME)
    runtime: tuple[str, ...] = key(
        "Debian packages for the finished image; installed last.", (), item=p.APT_NAME
    )


@dataclass(frozen=True)
class Pip:
    index: str | None = key(
        "The package index of lock, builds and installations in containers; unset: the public one. Logins: pip.netrc.",
        None,
        item=p.INDEX_URL,
    )
    extra_indexes: tuple[str, ...] = key(
        "Package indexes beside it. uv takes a package from the first of them that has it.",
        (),
        item=p.INDEX_URL,
    )
    netrc: HostPath | None = key(
        "A netrc file on this machine with the logins of package indexes: a secret in builds, a mount where sources are"
        " installed; never stored (set it in envgen.local.yaml).",
        None,
    )
    tools: tuple[str, ...] = key(
        "Python packages for the image, such as fastsafetensors.", (), item=p.REQUIREMENT
    )
    deps: tuple[str, ...] = key(
        "Packages installed before the sources (their run-time dependencies).",
        (),
        item=p.REQUIREMENT,
    )
    override: tuple[str, ...] = key(
        "Dependencies switched off: never installed, even if another package requires them.",
        (),
        item=p.DISTRIBUTION,
    )
    prefer: tuple[str, ...] = key(
        "Packages whose files stay where another package brings the same file, such as b12x beside FlashInfer.",
        (),
        item=p.DISTRIBUTION,
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

    @property
    def index_variables(self) -> dict[str, str]:
        """The package indexes as variables for pip and for uv, which reads none of pip's; {} for
        pip's own index.
        """
        extra = " ".join(self.extra_indexes)
        first = {"PIP_INDEX_URL": self.index, "UV_DEFAULT_INDEX": self.index}
        return {
            name: url
            for name, url in {**first, "PIP_EXTRA_INDEX_URL": extra, "UV_INDEX": extra}.items()
            if url
        }


@dataclass(frozen=True)
class DockerfileExtra:
    """The user's own lines of a Dockerfile."""

    base: tuple[DockerLine, ...] = key(
        "In the stage that all others start from, after apt.build.", ()
    )
    end: tuple[DockerLine, ...] = key(
        "In the finished image, before the check that pip.protect kept its packages.", ()
    )

    @property
    def sources(self) -> tuple[str, ...]:
        """What of the project these lines copy."""
        paths = list[str]()
        for line in (*self.base, *self.end):
            paths += map(own_path, line.sources)
        return tuple(paths)


@dataclass(frozen=True)
class Encoding:
    url: str = key("Where the file comes from.", item=p.HTTP_URL)
    sha256: str = key("Its SHA-256.", item=p.SHA256)


@dataclass(frozen=True)
class Memory:
    floor: ByteSize | None = key(
        "Memory of the machine that a service must leave free. Below it the guard in its container ends the service,"
        " before the machine thrashes. 0: no guard; unset: 5 % of the memory, at most 6 GiB, where cuda.arch_list names"
        " a GPU that shares it (8.7, 11.0, 12.1), and never more than a quarter of what gpu-memory-utilization leaves.",
        None,
    )


@dataclass(frozen=True)
class Tiktoken:
    """Their folder in the image is TIKTOKEN_ENCODINGS_BASE."""

    FOLDER: ClassVar[ContainerPath] = ContainerPath("/workspace/tiktoken_encodings")

    encodings: Mapping[str, Encoding] = key(
        "One entry per vocabulary: o200k_base, ...", {}, names=p.NAME
    )


# Commands that take --variant.
WITH_VARIANT = ("answers", "model pull", "predict", "run", "up")
ORIGIN_KINDS = ("git", "wheel", "checkout")


# distribution -> its repository, in which a release has the tag v1.2.3
REPOSITORIES = {
    "vllm": "https://github.com/vllm-project/vllm.git",
    "flashinfer-python": "https://github.com/flashinfer-ai/flashinfer.git",
}


@dataclass(frozen=True)
class Origin:
    """Where a source is from: ``git`` (with ``ref``), ``wheel`` or ``checkout``."""

    git: str | None = key("Address of a git repository; with ref.", None, item=p.GIT_URL)
    ref: str | None = key(
        "A branch, tag or commit, or a pull request of GitHub's: refs/pull/NUMBER/head.",
        None,
        item=p.GIT_REF,
    )
    wheel: Pin | None = key(
        "A built wheel on the package index, with extras as in vllm[b12x]==0.33.0: nothing is compiled. Without a"
        " version: the one that the other sources ask for.",
        None,
    )
    checkout: HostPath | None = key("A checkout on this machine, mounted (development only).", None)

    @property
    def kind(self) -> str:
        """``git``, ``wheel`` or ``checkout``."""
        return next((kind for kind in ORIGIN_KINDS if getattr(self, kind) is not None), "checkout")

    @property
    def is_built(self) -> bool:
        """Whether an image build makes its wheel."""
        return self.kind == "git"

    @property
    def version(self) -> str:
        """Its version, where it names one: an exact release, or a tag named like one."""
        return self.wheel.version if self.wheel is not None else version_of_ref(self.ref or "")


@dataclass(frozen=True)
class Repository:
    """A git repository that is fetched into, or beside, a source."""

    git: str = key("Address of a git repository.", item=p.GIT_URL)
    ref: str = key("A branch, tag or commit.", item=p.GIT_REF)


@dataclass(frozen=True)
class Input(Repository):
    """A repository that a source's build would fetch by itself, or reads from a folder that a
    variable names.
    """

    variable: str = key(
        "The variable that gives the build its path, such as VLLM_CUTLASS_SRC_DIR.", item=p.ENV_NAME
    )
    folder: str | None = key(
        "The folder in it that the build wants; unset: all of it.", None, item=p.INNER_PATH
    )


@dataclass(frozen=True)
class Install:
    requires: tuple[str, ...] = key(
        "Build requirements. Default for a mounted source: those of its pyproject.toml and build backend.",
        (),
        item=p.REQUIREMENT,
    )
    env: Mapping[str, str] = key("Variables for its build alone.", {}, names=p.ENV_NAME)
    prepare: tuple[str, ...] = key(
        "A command to run in the source before it is built, one word per item.", ()
    )
    inputs: Mapping[str, Input] = key(
        "Repositories that its build would fetch by itself: envgen fetches and locks them.",
        {},
        names=p.NAME,
    )
    dependencies: bool = key(
        "Also install what it depends on (never what pip.protect names).", False
    )


@dataclass(frozen=True)
class Source:
    origin: Origin = key("Where it comes from.")
    package: str = key("The name that Python imports.", item=p.MODULE)
    distribution: str = key("The name that pip knows.", item=p.DISTRIBUTION)
    mount: ContainerPath = key(
        "Where its checkout is in the container; unset: /workspace/NAME.",
        ContainerPath("/workspace/NAME"),
    )
    binaries: Pin | None = key(
        "The release whose wheel gives a mounted checkout its dependencies and, for vLLM, its compiled modules: nothing"
        " is compiled. Unset: the wheel of the profile that this one extends, if any; null: none.",
        None,
    )
    submodule_origins: Mapping[str, Repository] = key(
        "Submodules that come from elsewhere, such as a fork of CUTLASS, by their path in the source.",
        {},
        names=p.INNER_PATH,
    )
    patches: str | None = key(
        "The folder below patches/ whose series is applied (never to a mounted checkout).",
        None,
        item=p.NAME,
    )
    console_scripts: tuple[str, ...] = key(
        "Commands that it installs; doctor checks what they import.", (), item=p.COMMAND
    )
    install: Install = key("How it is built and installed.", Install())


@dataclass(frozen=True)
class Cache:
    path: ContainerPath = key("Where the container sees it.")
    host: HostPath | None = key("A folder on this machine; unset: a named volume.", None)
    namespace: bool = key(
        "For the cache `flashinfer`: a separate place for each source, CUDA, torch and arch.", True
    )


@dataclass(frozen=True)
class Machine:
    """One of several machines. It belongs in envgen.local.yaml."""

    address: str = key("Its IPv4 address on the cable between the machines.", item=p.IPV4)
    interface: str = key("The network interface that has this address.", item=p.INTERFACE)
    context: str = key(
        "The Docker context that reaches its engine; default: this machine's own.",
        "default",
        item=p.CONTEXT,
    )
    rdma: tuple[str, ...] = key(
        "RDMA devices for NCCL (NCCL_IB_HCA), in the same order on all machines; none: plain TCP.",
        (),
        item=p.INTERFACE,
    )
    caches: Mapping[str, HostPath] = key(
        "The host folders of caches on that machine, by the cache's name.", {}, names=p.NAME
    )


@dataclass(frozen=True)
class Variant:
    """Another way to run the same image. Only ``description`` and ``changes`` come from the file.

    The other keys define what it may contain; their values take effect by being merged into the
    profile (`layers.py`).
    ``changes``: each value that it sets, by its path.
    """

    changes: Mapping[str, str]
    description: str = key("One line about this variant.", "")
    env: Mapping[str, str] = key("As in the profile.", {}, names=p.ENV_NAME)
    services: Mapping[str, Service] = key(
        "Services of the profile, with the keys that differ.", {}, names=p.NAME
    )


@dataclass(frozen=True)
class Target:
    """Speeds to compare with: somebody's figures for the same model on the same machine."""

    figures: Mapping[str, str] = key(
        "decode and prefill in tokens/s, first_token in ms; tg32 and pp2048 as llama-bench names them.",
        names=p.FIGURE,
    )
    model: str = key(
        "The model that was measured: its repository, or for a service without `model` the name that it is "
        "served under. For another one nothing is compared."
    )
    source: str = key("Who measured it, where and how: a link, or a sentence.")
    depth: int = key("Tokens in the context before the prompt.", 0, low=0)
    concurrency: int = key("Requests at once.", 1, low=1)


@dataclass(frozen=True)
class Profile:
    """One environment. ``name`` and ``project`` are set by the loader; all else comes from the
    files and overrides.
    """

    name: str
    project: str
    mode: Mode = key("development: sources are mounted. production: sources are baked in.")
    base: Base = key("The base image.")
    cuda: Cuda = key("CUDA.", Cuda())
    variant: str = ""  # the one in use
    options: tuple[str, ...] = ()  # of the command line: --file FILE, --set KEY=VALUE
    description: str = key("One line about this profile.", "")
    dockerfile: str = key(
        "The file that `envgen render` writes; unset: Dockerfile for the first profile, Dockerfile.NAME for others.",
        "Dockerfile",
        item=p.DOCKERFILE,
    )
    image: ImageRef | None = key("The name of the built image; unset: PROJECT:PROFILE.", None)
    dockerfile_extra: DockerfileExtra = key(
        "RUN, COPY, ENV, ARG and LABEL lines of your own. envgen.lock does not cover what a RUN fetches.",
        DockerfileExtra(),
    )
    compose: HostPath | None = key(
        "A Compose file of your own, in the project; every command merges it over the rendered one. Its relative paths "
        "start at compose/.",
        None,
    )
    build: Build = key("How images are built.", Build())
    network: Network = key(
        "A company's network. Builds and services get HTTP_PROXY, HTTPS_PROXY and NO_PROXY of your shell.",
        Network(),
    )
    apt: Apt = key("Debian packages.", Apt())
    pip: Pip = key("Python packages.", Pip())
    tiktoken: Tiktoken = key("Vocabulary files for gpt-oss.", Tiktoken())
    sources: Mapping[str, Source] = key(
        "What is developed or built: flashinfer, vllm, ...", {}, names=p.NAME
    )
    python_path: tuple[ContainerPath, ...] = key(
        "PYTHONPATH, in front of what the base image has.", ()
    )
    env: Mapping[str, str] = key("Run-time variables, for all services.", {}, names=p.ENV_NAME)
    secrets: tuple[str, ...] = key(
        "Variables of your shell, or of `.env` beside this file; services get them at run time only.",
        (),
        item=p.ENV_NAME,
    )
    caches: Mapping[str, Cache] = key("Folders that outlive a container.", {}, names=p.NAME)
    gpu: GpuMode = key(
        "auto: GPUs where the engine has them, else none, with a warning; required: nothing starts without one; "
        "all: by the NVIDIA runtime; cdi: by CDI (nvidia.com/gpu=all); none.",
        GpuMode.AUTO,
    )
    ipc: str = key("The IPC namespace.", "private", item=p.IPC)
    shm_size: ByteSize | None = key("Size of /dev/shm, where ipc is not host.", None)
    memory: Memory = key("Ends a service before it takes the machine down.", Memory())
    ulimits: Mapping[str, int] = key(
        "Limits of the container, soft and hard alike; -1: unlimited. {soft: N, hard: N} is N.",
        {},
        names=p.ULIMIT,
        low=-1,
    )
    working_dir: ContainerPath = key(
        "The folder that services start in.", ContainerPath("/workspace")
    )
    services: Mapping[str, Service] = key("What can be started: dev, serve, ...", {}, names=p.NAME)
    nodes: Mapping[str, Machine] = key(
        "Machines that services can share (`cluster`), each under a name of your own.",
        {},
        names=p.NODE,
    )
    targets: Mapping[str, Target] = key(
        "Speeds to compare with; `envgen bench` and `sweep` print the gap to each.",
        {},
        names=p.TITLE,
    )
    variants: Mapping[str, Variant] = key(
        "Other ways to run the same image (`envgen up SERVICE --variant NAME`): the settings that differ.",
        {},
        names=p.NAME,
    )

    @property
    def image_name(self) -> str:
        """The full name of the built image."""
        return str(self.image) if self.image else f"{self.project}:{self.name}"

    @property
    def compose_name(self) -> str:
        """The Compose project's name."""
        return f"{self.project}-{self.name}"

    @property
    def shares_memory(self) -> bool:
        """Whether its servers use a GPU whose memory is the machine's."""
        return self.gpu is not GpuMode.NONE and self.cuda.arch_list.shares_memory

    @property
    def unguarded(self) -> bool:
        """Whether a server could fill the memory that GPU and machine share, with no guard that
        ends it before.
        """
        return self.shares_memory and self.memory.floor is not None and not self.memory.floor.bytes

    @property
    def compose_file(self) -> str:
        """The rendered Compose file, relative to the project."""
        return f"compose/{self.name}.yaml"

    def user_of(self, service: str) -> str:
        """The user that a service runs as: host, root, UID[:GID], or "" for the image's own."""
        described = self.services.get(service)
        if described and described.user:
            return described.user
        is_production_server = described and described.serves and self.mode is Mode.PRODUCTION
        return "host" if self.mounted_sources or is_production_server else ""

    @property
    def only_reads_weights(self) -> bool:
        """Whether the Hugging Face cache is mounted read-only: in production each server has its
        model, fetched before it starts.
        """
        servers = [service for service in self.services.values() if service.serves]
        fetched = [each for each in servers if each.model and "HF_HUB_OFFLINE" not in each.env]
        return self.mode is Mode.PRODUCTION and bool(servers) and fetched == servers

    @property
    def chosen(self) -> str:
        """The options to add to a command in a hint, so that it is about this profile with these
        values.
        """
        return shell_line(["--profile", self.name, *self.options])

    @property
    def lock_command(self) -> str:
        """`envgen lock` for this profile, which takes no --set."""
        return shell_line(["envgen", "lock", "--profile", self.name, *self._file])

    @property
    def render_command(self) -> str:
        """`envgen render` for the project of this profile."""
        return shell_line(["envgen", "render", *self._file])

    @property
    def _file(self) -> tuple[str, ...]:
        return self.options[:2] if self.options[:1] == ("--file",) else ()

    @property
    def default_service(self) -> str:
        """The service that is meant without a name: `dev`, else the first; "" if there is none."""
        return "dev" if "dev" in self.services else next(iter(self.services), "")

    @property
    def chosen_variant(self) -> str:
        """The same for commands that take a variant."""
        return f"{self.chosen} --variant {self.variant}" if self.variant else self.chosen

    def hint(self, verb: str, *words: str) -> str:
        """A command about this profile, to be typed."""
        options = self.chosen_variant if verb in WITH_VARIANT else self.chosen
        return " ".join(("envgen", verb, *words, options))

    @property
    def opens_folders(self) -> bool:
        """Whether the image must let a user who is not root write to homes, caches and the overlay."""
        return bool(self.mounted_sources) or any(
            self.user_of(name) not in ("", "root") for name in self.services
        )

    @property
    def mounted_sources(self) -> Mapping[str, Source]:
        """The sources whose checkout is mounted rather than baked in."""
        return {name: self.sources[name] for name in self.checkouts}

    @property
    def checkouts(self) -> Mapping[str, HostPath]:
        """The folder of each mounted source."""
        folders = {name: source.origin.checkout for name, source in self.sources.items()}
        return {name: folder for name, folder in folders.items() if folder}


@dataclass(frozen=True)
class ProjectFile:
    """What is at the top of envgen.yaml."""

    version: int = key("The version of this file format: 1.", low=1, high=1)
    name: str = key(
        "The project's name: images, containers and volumes carry it.", item=p.PROJECT_NAME
    )
    default_profile: str | None = key(
        "The profile of commands that name none; unset: the first one.", None, item=p.NAME
    )
    defaults: Profile | None = key("What all profiles share; the weakest layer.", None)
    profiles: Mapping[str, Profile] = key(
        "The environments of this project, by name.", {}, names=p.NAME
    )


@dataclass(frozen=True)
class LocalFile:
    """What is at the top of envgen.local.yaml."""

    version: int = key("The version of this file format: 1.", 1, low=1, high=1)
    name: str | None = key(
        "The name of this copy of the project, where another is on the same engine: its images, containers and volumes "
        "carry it.",
        None,
        item=p.PROJECT_NAME,
    )
    default_profile: str | None = key(
        "The profile of commands that name none, on this machine.", None, item=p.NAME
    )
    defaults: Profile | None = key("As in envgen.yaml.", None)
    profiles: Mapping[str, Profile] = key(
        "What differs from the profiles of envgen.yaml.", {}, names=p.NAME
    )


@dataclass(frozen=True)
class Project:
    """A whole project file. ``root`` is the folder that it is in."""

    name: str
    default_profile: str
    profiles: Mapping[str, Profile]
    file: Path
    root: Path
