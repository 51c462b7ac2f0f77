"""Where the cache's agent runs (a running service of the profile, else a temporary container), and
queries.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envgen.deployment import Deployment
from envgen.engine.values import Container, ContainerMount
from envgen.errors import EngineError, NotFoundError
from envgen.profile.caches import FLASHINFER
from envgen.profile.model import Profile
from envgen.profile.values import CudaArch, CudaArchList
from envgen.render.environment import service_env

CACHE = FLASHINFER.name  # the key of the profile's `caches`
[(BASE, BELOW)] = FLASHINFER.parents.items()
_KEY = re.compile(r"-([0-9a-f]{12})")


@dataclass(frozen=True)
class AgentHost:
    """A running container, or an image with the cache's mount.

    ``root``: of the cache. ``sources``: its volumes or folders, to find other containers that share
    it.
    """

    root: str
    shown: str
    container: Container | None = None
    image: str = ""
    mounts: tuple[ContainerMount, ...] = ()
    sources: frozenset[str] = frozenset()


def find_place(deployment: Deployment) -> AgentHost | None:
    """Where the agent runs. None: the cache's volume or folder doesn't exist yet.

    EngineError without a container and an image; NotFoundError if the profile has no FlashInfer
    cache.
    """
    engine = deployment.engine
    profile = deployment.profile
    own = cache_mount(deployment)
    containers = engine.containers(project=profile.compose_name, all=True)
    for container in sorted(containers, key=lambda c: (c.service, c.name)):
        root = root_in(container.env, profile)
        mount = mount_of(container.mounts, root)
        if container.state == "running" and mount is not None:
            shown = f"service {container.service or container.name}"
            return AgentHost(root, shown, container, sources=frozenset([mount.source]))
    if not exists(deployment, own):
        return None
    return temporary_host(deployment, root_in(service_env(profile), profile), own)


def exists(deployment: Deployment, mount: ContainerMount) -> bool:
    return (
        Path(mount.source).is_dir()
        if mount.kind == "bind"
        else deployment.engine.volume(mount.source) is not None
    )


def temporary_host(deployment: Deployment, root: str, *mounts: ContainerMount) -> AgentHost:
    """A temporary container of the profile's image or its base. EngineError if the engine has
    neither.
    """
    profile = deployment.profile
    for name in (profile.image_name, str(profile.base.image)):
        if deployment.engine.image(name) is not None:
            sources = frozenset(mount.source for mount in mounts)
            return AgentHost(
                root, f"a temporary container of {name}", image=name, mounts=mounts, sources=sources
            )
    raise EngineError(
        f"no service of profile {profile.name} runs, and the engine has neither its image {profile.image_name} "
        "nor its base",
        hint=f"run `{profile.hint('build')}`",
    )


def key_in(source: str) -> str:
    """The key in the name of a volume or folder; "" for a cache without a namespace."""
    key = _KEY.fullmatch(source[-13:])
    return key[1] if key else ""


def cache_mount(deployment: Deployment) -> ContainerMount:
    """The mount of the profile's cache, as `envgen up` makes it. NotFoundError if the profile has
    none.
    """
    if CACHE not in deployment.profile.caches:
        hint = f"add `{FLASHINFER.line()}` to the profile"
        raise NotFoundError(f"profile {deployment.profile.name} has no FlashInfer cache", hint=hint)
    return deployment.caches[CACHE]


def root_in(env: Mapping[str, str], profile: Profile) -> str:
    """The cache's root by FlashInfer's rule for these variables, else by the profile's mount."""
    return (
        posixpath.join(env[BASE], BELOW.lstrip("/"))
        if env.get(BASE)
        else profile.caches[CACHE].path.path
    )


def mount_of(mounts: Sequence[ContainerMount], root: str) -> ContainerMount | None:
    """The innermost mount that contains ``root``."""
    covering = [
        m for m in mounts if root == m.target or root.startswith(f"{m.target.rstrip('/')}/")
    ]
    return max(covering, key=lambda mount: len(mount.target), default=None)


@dataclass(frozen=True)
class Query:
    """Modules by name or glob, version and architecture. ``archs``: FlashInfer's folder names;
    None: all. ``files``: only modules that were compiled from one of these.
    """

    patterns: tuple[str, ...] = ()
    version: str = ""
    archs: tuple[str, ...] | None = None
    files: tuple[str, ...] = ()


def arch_folders(archs: CudaArchList) -> tuple[str, ...]:
    """The folders of these architectures; "": the layout without one, where there are none.

    FlashInfer up to 0.6.6 uses ``121`` for ``12.1``; later releases use ``121a``, and ``120f`` for
    ``12.0``.
    """
    folders = {archs.folder: None}
    for twelve in ("f", "a"):
        named = dict.fromkeys(_normal(arch, twelve) for arch in archs.archs)
        folders[CudaArchList(tuple(named)).folder] = None
    return tuple(folders)


def _normal(arch: CudaArch, twelve: str) -> CudaArch:
    """The suffix that FlashInfer 0.6.7 and later add. ``twelve``: that of 12.0, which is ``a`` with
    CUDA 12.8.
    """
    if arch.suffix or arch.major < 9:
        return arch
    is_twelve = (arch.major, arch.minor) == (12, 0)
    return CudaArch(arch.major, arch.minor, twelve if is_twelve else "a")
