"""The namespaces of the cache: list and remove them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from envgen.deployment import Deployment
from envgen.engine.values import ContainerMount
from envgen.errors import EngineError, EnvgenError, NotFoundError
from envgen.jitcache.place import CACHE, cache_mount, exists, key_in, root_in, temporary_host
from envgen.jitcache.service import NOTHING, ROOT_USER, TIMEOUT, JitCache
from envgen.render.environment import service_env
from envgen.render.locking import ALIKE
from envgen.text import counted, progress


@dataclass(frozen=True)
class NamespaceUse:
    """The agent's answer about one namespace. ``used``: the last use, in seconds since 1970."""

    bytes: int
    used: float


@dataclass(frozen=True)
class Removal:
    """The agent's answer: what could not be removed, and measurements."""

    errors: tuple[str, ...] = ()
    spaces: tuple[NamespaceUse, ...] = ()


@dataclass(frozen=True)
class Space:
    """A namespace. ``source``: its volume or folder; ``current``: the profile's own now; ``users``:
    containers.
    """

    key: str
    source: str
    kind: str
    current: bool
    users: tuple[str, ...]
    bytes: int = 0
    used: float = 0.0


def create_mount(cache: JitCache) -> ContainerMount:
    """The mount of the profile's cache; its volume or folder is created if missing."""
    mount = cache_mount(cache.deployment)

    def make() -> None:
        if mount.kind == "bind":
            Path(mount.source).mkdir(parents=True, exist_ok=True)
        elif cache.deployment.engine.volume(mount.source) is None:
            cache.deployment.create_volume(mount.source, f"cache-{CACHE}")

    with_kernels(cache.deployment, make)
    return mount


def with_kernels(deployment: Deployment, make: Callable[[], None]) -> None:
    """``make`` creates the profile's folders and volumes; a new cache then begins with what another
    one has.
    """
    cache = JitCache(deployment)
    before = alike(cache)
    make()
    carry(cache, before)


def alike(cache: JitCache) -> Space | None:
    """The last used cache that differs by patches alone, where the profile's own is not there yet."""
    deployment = cache.deployment
    if CACHE not in deployment.profile.caches or deployment.image is None:
        return None
    mount = cache_mount(deployment)
    if not key_in(mount.source) or exists(deployment, mount):
        return None
    others = [
        one
        for one in spaces(cache)
        if one.key[:ALIKE] == key_in(mount.source)[:ALIKE] and not one.current
    ]
    return others[0] if others else None


def carry(cache: JitCache, before: Space | None) -> None:
    """Copy the modules of another cache into the profile's new one, except those that a patch may
    concern.
    """
    deployment = cache.deployment
    if before is None or deployment.image is None:
        return
    mount = cache_mount(deployment)
    old = ContainerMount(before.source, "/envgen-old", before.kind, read_only=True)
    new = replace(mount, target="/envgen-new")
    words = ["cp", "-a", f"{old.target}/.", f"{new.target}/"]
    place = temporary_host(
        deployment, root_in(service_env(deployment.profile), deployment.profile), mount
    )
    options: dict[str, Any] = {"mounts": [old, new], "user": ROOT_USER, "timeout": TIMEOUT}
    done = deployment.engine.run_once(deployment.image.id, words, **options)
    try:
        kept, dropped = ([], ["all"]) if done.code else cache.keep_proven(place)
    except EnvgenError:
        done, kept, dropped = replace(done, code=1), [], ["all"]
    if done.code:  # nothing unproven stays
        cache.drop(place)
    again = f"; compiled again: {', '.join(dropped)}" if dropped else ""
    progress(
        f"  kernels: {counted(len(kept), 'module')} kept from {before.source}, which has other patches{again}"
    )


def leftovers(cache: JitCache) -> tuple[str, int, Callable[[], str]] | None:
    """Leftovers of killed clears in the profile's cache: volume or folder, bytes, and a function
    that removes them.
    """
    try:
        left = cache.clear(NOTHING, dry_run=True).leftovers
    except NotFoundError:  # no cache yet
        return None
    name = cache_mount(cache.deployment).source
    return (
        (name, left.bytes, lambda: "; ".join(cache.clear(NOTHING).errors)) if left.count else None
    )


def spaces(cache: JitCache) -> list[Space]:
    """The namespaces of this profile, the current one first, then by last use; none with
    `namespace: false`.
    """
    current = cache_mount(cache.deployment)
    if not key_in(current.source):
        return []
    head = current.source[: -len(key_in(current.source))]
    if current.kind == "volume":
        sources = list(cache.deployment.engine.volumes(head))
    else:
        sources = [
            str(path) for path in Path(head).parent.glob("envgen-*") if not path.is_symlink()
        ]
    namespaces = [
        Space(key_in(source), source, current.kind, source == current.source, _users(cache, source))
        for source in sources
        if key_in(source) and source[: -len(key_in(source))] == head
    ]
    return sorted(_measured(cache, namespaces), key=lambda space: (not space.current, -space.used))


def _users(cache: JitCache, source: str) -> tuple[str, ...]:
    """Containers, running or not, that mount the namespace or a folder in it; not leftovers of
    killed runs.
    """
    left = {container.id for container in cache.deployment.engine.leftovers()}
    return tuple(
        container.name
        for container in cache.deployment.engine.containers(all=True)
        if container.id not in left
        and any(f"{m.source}/".startswith(f"{source}/") for m in container.mounts)
    )


def _ask(cache: JitCache, mounts: Sequence[ContainerMount], **request: Any) -> Removal:
    place = temporary_host(cache.deployment, "/", *mounts)
    return cache.ask(Removal, place, {"operation": "spaces", **request})


def _measured(cache: JitCache, namespaces: Sequence[Space]) -> list[Space]:
    if not namespaces:
        return []
    mounts = [
        ContainerMount(s.source, f"/envgen-spaces/{n}", s.kind, read_only=True)
        for n, s in enumerate(namespaces)
    ]
    measured = _ask(cache, mounts, roots=[mount.target for mount in mounts]).spaces
    if len(measured) != len(namespaces):
        raise EngineError(
            f"unexpected answer: {len(measured)} namespaces instead of {len(namespaces)}"
        )
    return [
        replace(space, **vars(measurement))
        for space, measurement in zip(namespaces, measured, strict=True)
    ]


def remove(cache: JitCache, space: Space) -> str:
    """Remove a namespace. Returns why it stayed, or ""."""
    if _users(cache, space.source):
        return "a container uses it now"
    if space.kind == "volume":
        cache.deployment.engine.remove_volume(space.source)
        return ""
    mount = ContainerMount(str(Path(space.source).parent), "/envgen-parent", "bind")
    errors = _ask(cache, [mount], parent=mount.target, remove=[Path(space.source).name]).errors
    return errors[0] if errors else ""
