"""Names of variables, volumes and paths in rendered files, containers and commands."""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from envgen.profile.caches import environment_of
from envgen.profile.model import GpuMode, Profile
from envgen.profile.values import HostPath
from envgen.render.quote import Pair

# The second line of a file that is rendered without a lock.
NOT_LOCKED = "Not locked: versions are resolved at build time. To pin them: `envgen lock`, then `envgen render`."
WRITTEN = "Written by `envgen render`"  # in every rendered file; a file without it is the user's
HOME = "/opt/envgen"  # everything of ours in an image
OVERLAY = f"{HOME}/env"  # the virtual environment of mounted sources, on a volume
GATE = f"{HOME}/bin/compile-gate"  # starts every compiler
WITH_START_UP = (
    f"{HOME}/bin/envgen-env"  # runs a command with the variables of the base image's start-up
)
USER_HOME = "/root"  # of every user: caches lie below it
RUN = "/run/envgen"  # for mounts of build steps
NETRC_FILE = "/etc/envgen/netrc"  # where logins of package indexes are mounted at run time
CA_FILE = "/etc/envgen/ca.crt"  # where a company's CA certificates are mounted at run time
CCACHE_MAXSIZE = "50Gi"
CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"


def nvcc_threads(profile: Profile) -> int:
    """Threads of one nvcc. Each compiles for one arch. vLLM's setup.py starts ``MAX_JOBS //
    NVCC_THREADS``
    compilers, so more threads than archs would only reduce those."""
    return min(len(profile.cuda.arch_list.archs), 4)


def cuda_env(profile: Profile) -> list[Pair]:
    """For nvcc and its callers; [] in a profile without GPU architectures (`gpu: none`)."""
    cuda = profile.cuda
    if not cuda.arch_list.archs:
        return []
    threads = str(nvcc_threads(profile))
    return [
        Pair("CUDA_HOME", cuda.HOME.path),
        Pair("FLASHINFER_CUDA_ARCH_LIST", str(cuda.arch_list)),
        Pair("TORCH_CUDA_ARCH_LIST", cuda.arch_list.torch),
        Pair("FLASHINFER_NVCC_THREADS", threads),
        Pair("NVCC_THREADS", threads),
    ]


def index_env(profile: Profile) -> list[Pair]:
    """The package indexes, in builds and at run time."""
    return [Pair(name, value) for name, value in profile.pip.index_variables.items()]


def asks_logins(profile: Profile) -> bool:
    """Whether builds get the secret with logins of package indexes."""
    return bool(profile.pip.netrc or profile.pip.index_variables)


def image_env(profile: Profile) -> list[Pair]:
    """The variables of the image. Those that only services need are in the Compose file."""
    pairs = cuda_env(profile)
    # FlashInfer and torch call it as nvcc; CMake and ccache as a launcher, where a mounted checkout
    # is compiled.
    gated = ["FLASHINFER_NVCC", "PYTORCH_NVCC"] if pairs or profile.mounted_sources else []
    if profile.mounted_sources or "ccache" in profile.caches:
        gated += ["CCACHE_PREFIX"]
    if profile.mounted_sources:
        gated += [f"CMAKE_{language}_COMPILER_LAUNCHER" for language in ("C", "CXX", "CUDA")]
    pairs += [Pair(name, GATE) for name in gated]
    if profile.tiktoken.encodings:
        pairs.append(Pair("TIKTOKEN_ENCODINGS_BASE", profile.tiktoken.FOLDER.path))
    if profile.python_path:
        folders = ":".join(path.path for path in profile.python_path)
        pairs.append(Pair("PYTHONPATH", folders, prepend=True))
    return pairs


def service_env(profile: Profile) -> dict[str, str]:
    """The variables that follow from the profile, for running containers only (without MAX_JOBS)."""
    env = {"PYTHONUNBUFFERED": "1"}  # the log has all output of a program that was killed
    if profile.gpu is not GpuMode.NONE:
        # Triton's own ptxas may not know the newest architectures (triton#8539); CUDA's does. Newer
        # Tritons have a separate variable for Blackwell.
        ptxas = f"{profile.cuda.HOME}/bin/ptxas"
        env["TRITON_PTXAS_PATH"] = ptxas
        env["TRITON_PTXAS_BLACKWELL_PATH"] = ptxas
    if profile.network.ca_certificates is not None:
        # The base image's bundle, to which the entry point adds the company's CA.
        env["SSL_CERT_FILE"] = env["REQUESTS_CA_BUNDLE"] = CA_BUNDLE
    for name, cache in profile.caches.items():
        env.update(environment_of(name, cache.path.path))
    if profile.only_reads_weights:
        env["HF_MODULES_CACHE"] = "/tmp/hf-modules"  # code of models, which lies beside the weights
    if "ccache" in profile.caches:
        env["CCACHE_MAXSIZE"] = CCACHE_MAXSIZE
    return env


def memory_floor(profile: Profile, service: str = "") -> str:
    """The memory that memory-guard keeps free, as ENVGEN_MEMORY_FLOOR has it; "": no guard.

    Bytes, or auto: a share of the machine's. auto:0.30, for a ``service`` that leaves this part of
    it to others.
    """
    if profile.memory.floor is not None:
        return str(profile.memory.floor.bytes or "")
    if not profile.shares_memory:
        return ""
    described = profile.services.get(service)
    share = described.flag("gpu-memory-utilization") if described is not None else None
    try:
        left = 1 - float(str(share))
    except ValueError:
        return "auto"
    return f"auto:{left:.2f}" if 0 < left < 1 else "auto"


def user_env(profile: Profile, service: str) -> dict[str, str]:
    """Variables for a user without an entry in the image's /etc/passwd: name and home."""
    if profile.user_of(service) in ("", "root"):
        return {}
    return {"HOME": USER_HOME, "USER": "envgen", "LOGNAME": "envgen"}


def opened_folders(profile: Profile) -> tuple[str, ...]:
    """The folders of the image that root's group may write to; a new volume has mode and owner of
    its folder.
    """
    if not profile.opens_folders:
        return ()
    folders = ["/run", USER_HOME, profile.working_dir.path]
    if profile.mounted_sources:
        folders.append(OVERLAY)
    for cache in profile.caches.values():
        place = PurePosixPath(cache.path.path)
        above = [str(at) for at in reversed(place.parents) if at.is_relative_to(USER_HOME)]
        folders += [*above, str(place)]
    return tuple(folder for folder in dict.fromkeys(folders) if folder != "/")


def checkout_variable(source: str) -> str:
    return f"ENVGEN_SOURCES__{source.upper()}__ORIGIN__CHECKOUT"


def with_start_up(argv: Sequence[str]) -> list[str]:
    """``argv`` for `docker exec`, with the variables of the base image's start-up (CUDA's forward
    compatibility). In an
    image of an older envgen it runs without them."""
    return [
        "sh",
        "-c",
        f'[ ! -x {WITH_START_UP} ] || exec {WITH_START_UP} "$@"; exec "$@"',
        "sh",
        *argv,
    ]


def cache_variable(cache: str) -> str:
    return f"ENVGEN_CACHES__{cache.upper()}__HOST"


def mount_variable(service: str, mount: str) -> str:
    return f"ENVGEN_SERVICES__{service.upper()}__MOUNTS__{mount.upper()}__HOST"


JOBS_VARIABLE = "ENVGEN_BUILD__MAX_JOBS"
ALL_JOBS = 128  # above any usual number of cores; the entry point sets 4 without compile-gate
FLOOR_VARIABLE = "ENVGEN_MEMORY_FLOOR"  # of memory-guard
NETRC_VARIABLE = "ENVGEN_PIP__NETRC"
CA_VARIABLE = "ENVGEN_NETWORK__CA_CERTIFICATES"
UID_VARIABLE, GID_VARIABLE = (
    "ENVGEN_UID",
    "ENVGEN_GID",
)  # of the user who starts a service with `user: host`
OFFLINE_VARIABLE = "ENVGEN_HF_OFFLINE"  # 1 where `up` has found a service's weights
# Of one machine in a cluster.
NODE_RANK = "ENVGEN_NODE_RANK"
NODE_ADDRESS = "ENVGEN_NODE_ADDRESS"
NODE_INTERFACE = "ENVGEN_NODE_INTERFACE"
NODE_RDMA = "ENVGEN_NODE_RDMA"
HEAD_ADDRESS = "ENVGEN_HEAD_ADDRESS"
WHEELHOUSE_VARIABLE = "ENVGEN_BUILD__WHEELHOUSE"


def cache_volume(profile: Profile, cache: str) -> str:
    """The Docker volume of a cache that has no folder on the host."""
    return f"{profile.compose_name}-cache-{cache}"


def overlay_volume(profile: Profile) -> str:
    """The Docker volume of editable installs: a new one for another base image, Python or set of
    sources.
    """
    parts = [str(profile.base.image), profile.base.python]
    mounted = profile.mounted_sources.items()
    parts += sorted(f"{name}={source.distribution}" for name, source in mounted)
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    return f"{profile.compose_name}-env-{digest[:12]}"


def compose_path(path: HostPath) -> str | None:
    """A path of the project, relative to compose/. None for a path of one machine."""
    if path.is_machine_specific:
        return None
    if path.path == "~" or path.path.startswith("~/"):
        return path.path
    return posixpath.normpath(posixpath.join("..", path.path))


def compose_environment(profile: Profile, root: Path) -> dict[str, str]:
    """The variables for the rendered Compose file that `envgen up` sets: this machine's absolute
    paths.
    """
    paths: dict[str, HostPath | None] = {
        CA_VARIABLE: profile.network.ca_certificates,
        WHEELHOUSE_VARIABLE: profile.build.wheelhouse,
        NETRC_VARIABLE: profile.pip.netrc,
    }
    for name, checkout in profile.checkouts.items():
        paths[checkout_variable(name)] = checkout
    for name, cache in profile.caches.items():
        paths[cache_variable(name)] = cache.host
    env = {}
    for name, service in profile.services.items():
        if service.model is not None:
            env[OFFLINE_VARIABLE] = "1"
        for key, mount in service.mounts.items():
            paths[mount_variable(name, key)] = mount.host
    for variable, path in paths.items():
        if path is not None:
            env[variable] = str(path.below(root))
    jobs = profile.build.max_jobs.count
    if jobs is not None:
        env[JOBS_VARIABLE] = str(jobs)
    return env


def compose_env(profile: Profile, service: str) -> dict[str, str]:
    """The variables of a service in Compose: derived ones, then the profile's, then its own, which
    win.
    """
    env = service_env(profile) | user_env(profile, service) | dict(profile.env)
    described = profile.services.get(service)
    if described is not None:
        env |= described.env
    return env
