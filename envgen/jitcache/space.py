"""A new cache begins with the kernels of an older one that differs by patches alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from envgen.deployment import Deployment
from envgen.engine.values import ContainerMount
from envgen.errors import EnvgenError
from envgen.jitcache.place import CACHE, cache_mount, exists, key_in, root_in, temporary_host
from envgen.jitcache.service import ROOT_USER, TIMEOUT, JitCache
from envgen.render.environment import service_env
from envgen.render.locking import ALIKE
from envgen.text import counted, progress


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
    older = sibling_cache(cache)
    make()
    if older is not None:
        copy_kernels(cache, older)


def sibling_cache(cache: JitCache) -> ContainerMount | None:
    """The newest cache that differs by patches alone, where the profile's own is not there yet."""
    deployment = cache.deployment
    if CACHE not in deployment.profile.caches or deployment.image is None:
        return None
    own = cache_mount(deployment)
    key = key_in(own.source)
    if not key or exists(deployment, own):
        return None
    head = own.source.removesuffix(key)
    made = {}  # a cache -> its time, as a text that sorts
    if own.kind == "volume":
        made = deployment.engine.volumes(head)
    else:
        for path in Path(head).parent.glob("envgen-*"):
            if not path.is_symlink():
                made[str(path)] = f"{path.stat().st_mtime:020.6f}"
    siblings = []
    for source in made:
        other = key_in(source)
        if other and source == head + other and other[:ALIKE] == key[:ALIKE]:
            siblings.append(source)
    if not siblings:
        return None
    newest = max(siblings, key=made.__getitem__)
    return ContainerMount(newest, "/envgen-old", own.kind, read_only=True)


def copy_kernels(cache: JitCache, older: ContainerMount) -> None:
    """Copy the modules of another cache into the profile's new one, except those that a patch may
    concern.
    """
    deployment = cache.deployment
    assert deployment.image is not None  # ``sibling_cache`` found one
    mount = cache_mount(deployment)
    new = replace(mount, target="/envgen-new")
    root = root_in(service_env(deployment.profile), deployment.profile)
    place = temporary_host(deployment, root, mount)
    done = deployment.engine.run_once(
        deployment.image.id,
        ["cp", "-a", f"{older.target}/.", f"{new.target}/"],
        mounts=[older, new],
        user=ROOT_USER,
        timeout=TIMEOUT,
    )
    try:
        copied = not done.code
        kept, dropped = cache.keep_proven(place) if copied else ([], ["all"])
    except EnvgenError:
        copied = False
        kept = []
        dropped = ["all"]
    if not copied:  # nothing unproven stays
        cache.drop(place)
    again = f"; compiled again: {', '.join(dropped)}" if dropped else ""
    progress(
        f"  kernels: {counted(len(kept), 'module')} kept from {older.source}, which has other patches{again}"
    )
