"""What is asked for, and where the agent runs: in a running service of the profile, else in a throw-away container."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envgen.deployment import Deployment
from envgen.engine.git import WorkTree
from envgen.engine.values import Container, Mount
from envgen.errors import EngineError, NotFoundError, RefusedError, UsageError
from envgen.inside.jit.layout import check_request
from envgen.inside.jit.tree import Fault
from envgen.profile.model import Profile
from envgen.profile.values import CudaArch, CudaArchList
from envgen.render.environment import service_env

CACHE = "flashinfer"  # the key of the profile's `caches`
# The caches of what is compiled at run time.
COMPILED = (CACHE, "torch", "triton", "vllm", "cute_dsl", "tilelang", "tvm_ffi", "b12x", "humming", "quack")
BASE = "FLASHINFER_WORKSPACE_BASE"
SOURCE = "flashinfer"
NO_ARCH = "none"  # the layout without an arch folder: no GPU and FLASHINFER_CUDA_ARCH_LIST unset
_KEY = re.compile(r"-([0-9a-f]{12})")


@dataclass(frozen=True)
class AgentHost:
    """A running container, or an image with the cache's mount.

    ``root`` empty: the agent finds it by FlashInfer's own rule. ``sources`` = what the cache is mounted from, to find
    the other containers that share it.
    """

    root: str
    shown: str
    container: Container | None = None
    image: str = ""
    mounts: tuple[Mount, ...] = ()
    sources: frozenset[str] = frozenset()


def find_place(here: Deployment) -> AgentHost | None:
    """The best place for the agent. None when the cache can't hold anything yet: its volume or folder isn't there.

    Raises EngineError when there is neither a container nor an image, NotFoundError when the profile keeps no cache.
    """
    engine, profile = here.engine, here.profile
    containers = engine.containers(project=profile.compose_name, all=True)
    for container in sorted(containers, key=lambda c: (c.service, c.name)):
        root = root_in(container.env, profile)
        mount = mount_of(container.mounts, root)
        # A service that keeps its cache for itself is asked only where the profile has no cache to share.
        if container.state == "running" and (mount is not None or CACHE not in profile.caches):
            sources = frozenset([mount.source] if mount else [])
            return AgentHost(root, f"service {container.service or container.name}", container, sources=sources)
    if CACHE not in profile.caches:
        raise NotFoundError(
            f"profile {profile.name} keeps no FlashInfer cache, and none of its services runs",
            hint="add `caches: {flashinfer: {path: /root/.cache/flashinfer}}` to the profile",
        )
    mount = mount_here(here)
    there = Path(mount.source).exists() if mount.kind == "bind" else engine.volume(mount.source) is not None
    place = throw_away(here, root_in(service_env(profile), profile), mount)
    return place if there else None


def throw_away(here: Deployment, root: str, *mounts: Mount) -> AgentHost:
    """A throw-away container of the profile's image or its base. EngineError where neither is here."""
    profile = here.profile
    for name in (profile.image_name, str(profile.base.image)):
        if here.engine.image(name) is not None:
            sources = frozenset(mount.source for mount in mounts)
            return AgentHost(root, f"a throw-away container of {name}", image=name, mounts=mounts, sources=sources)
    raise EngineError(
        f"no service of profile {profile.name} runs, and neither its image {profile.image_name} nor its base is here",
        hint=f"run `envgen build {profile.chosen}`",
    )


def key_in(source: str) -> str:
    """The key in a volume's or folder's name; empty for a cache without a namespace."""
    found = _KEY.fullmatch(source[-13:])
    return found[1] if found else ""


def mount_here(here: Deployment) -> Mount:
    """Where the profile's cache is, or will be at the next `envgen up`. NotFoundError when it keeps none."""
    if CACHE not in here.profile.caches:
        hint = "add `caches: {flashinfer: ...}`"
        raise NotFoundError(f"profile {here.profile.name} keeps no FlashInfer cache", hint=hint)
    return here.caches[CACHE]


@dataclass(frozen=True)
class Other:
    """A cache beside FlashInfer's. ``source``: its volume or folder; ``there``: whether anything made it yet."""

    name: str
    source: str
    path: str
    there: bool


def others(here: Deployment) -> list[Other]:
    """The other caches of what is compiled at run time, as `envgen up` mounts them."""
    found = []
    for name, mount in here.caches.items():
        if name in COMPILED and name != CACHE:
            is_folder = mount.kind == "bind"
            there = Path(mount.source).is_dir() if is_folder else here.engine.volume(mount.source) is not None
            found.append(Other(name, mount.source, mount.target, there))
    return found


def root_in(env: Mapping[str, str], profile: Profile) -> str:
    """FlashInfer's rule by these variables, else the profile's mount; empty: left to the agent, which knows HOME."""
    if env.get(BASE):
        return posixpath.join(env[BASE], ".cache/flashinfer")
    cache = profile.caches.get(CACHE)
    return cache.path.path if cache else ""


def mount_of(mounts: Sequence[Mount], root: str) -> Mount | None:
    """The mount that contains ``root``: the deepest of those that cover it."""
    covering = [m for m in mounts if root and (root == m.target or root.startswith(m.target.rstrip("/") + "/"))]
    return max(covering, key=lambda mount: len(mount.target), default=None)


# What a user asks for


@dataclass(frozen=True)
class Query:
    """Module names or globs. ``archs`` are folder names as FlashInfer writes them; None: all of them."""

    patterns: tuple[str, ...] = ()
    version: str = ""
    archs: tuple[str, ...] | None = None


def make_query(patterns: tuple[str, ...] = (), version: str | None = None, arch: str | None = None) -> Query:
    """Build a query from a command line. RefusedError for what could lead out of the cache, before Docker is asked."""
    query = Query(patterns, version or "", None if arch is None else arch_folders(arch))
    try:
        check_request(list(patterns), query.version, list(query.archs or ()))
    except Fault as fault:
        raise RefusedError(fault.message, hint="name a module as `envgen cache list` shows it") from None
    if version == "":
        raise UsageError("--version is empty", hint="write it as `envgen cache list` shows it: --version 0.5.3")
    return query


def arch_folders(text: str) -> tuple[str, ...]:
    """The cache folders that an arch may mean: ``12.1a`` and ``121a`` are the same; ``none`` is the layout without one.

    FlashInfer up to 0.6.6 keeps ``12.1`` as ``121``; later releases make ``121a`` of it and ``120f`` of ``12.0``.
    """
    if text == NO_ARCH:
        return ("",)
    if not text:
        raise UsageError("--arch is empty", hint="write it like 12.1a or 121a; `none` is the layout without one")
    try:
        parsed = CudaArchList.parse(text)
    except ValueError:
        return (text,)
    named = [CudaArchList(tuple({_normal(arch, twelve): None for arch in parsed.archs})) for twelve in ("f", "a")]
    return tuple(dict.fromkeys([parsed.folder, *(one.folder for one in named)]))


def _normal(arch: CudaArch, twelve: str) -> CudaArch:
    """What FlashInfer from 0.6.7 on makes of an arch without a suffix. ``twelve``: of 12.0; ``a`` is for CUDA 12.8."""
    if arch.suffix or arch.major < 9:
        return arch
    return CudaArch(arch.major, arch.minor, twelve if (arch.major, arch.minor) == (12, 0) else "a")


def seconds(text: str) -> float:
    """An age such as ``30d``, ``12h``, ``45m``, ``90s``. UsageError for anything else."""
    found = re.fullmatch(r"([0-9]{1,9})([dhms])", text)
    if found is None:
        raise UsageError(f"{text!r} is not an age", hint="write it like 30d, 12h or 45m")
    return float(found[1]) * {"d": 86400, "h": 3600, "m": 60, "s": 1}[found[2]]


def changed_files(profile: Profile, root: Path, revision: str) -> tuple[str, ...]:
    """Paths in the container of all that differs from a revision of the mounted checkout, in submodules too; one at
    another commit counts as a whole folder."""
    source = profile.sources.get(SOURCE)
    if source is None or source.origin.checkout is None:
        raise UsageError(
            f"--changed needs a mounted checkout, and profile {profile.name} has none for {SOURCE}",
            hint=f"set sources.{SOURCE}.origin to a checkout, or name the modules",
        )
    folder = Path(os.path.normpath(root / Path(source.origin.checkout.path).expanduser()))
    if not folder.is_dir():
        raise UsageError(f"the checkout {folder} is not there", hint=f"sources.{SOURCE}.origin.checkout names it")
    tree = WorkTree(folder)
    if not tree.commit(revision):
        raise UsageError(f"{folder} has no revision {revision!r}", hint="name a branch, tag or commit of that checkout")
    return tuple(posixpath.join(source.mount.path, name) for name in tree.differing(revision))
