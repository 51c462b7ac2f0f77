"""Namespaces on the host's side: which there are, and removing one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from envgen.engine.values import COMPOSE_PROJECT, Mount
from envgen.errors import EngineError
from envgen.jitcache.place import CACHE, key_in, mount_here, throw_away
from envgen.jitcache.service import JitCache


@dataclass(frozen=True)
class Measured:
    """The agent's answer about one namespace. ``used``: seconds since 1970."""

    bytes: int
    files: int
    used: float
    libraries: int


@dataclass(frozen=True)
class Done:
    """What was removed (or would be), what could not be, and what was measured."""

    count: int = 0
    bytes: int = 0
    errors: tuple[str, ...] = ()
    spaces: tuple[Measured, ...] = ()


@dataclass(frozen=True)
class Space:
    """One namespace. ``source``: its volume or folder; ``current``: this profile's now; ``users``: containers."""

    key: str
    source: str
    kind: str
    current: bool
    users: tuple[str, ...]
    bytes: int = 0
    files: int = 0
    used: float = 0.0
    libraries: int = 0


def made_mount(cache: JitCache) -> Mount:
    """Where the profile's cache is, made where it isn't there yet."""
    mount = mount_here(cache.here)
    if mount.kind == "bind":
        Path(mount.source).mkdir(parents=True, exist_ok=True)
    elif cache.here.engine.volume(mount.source) is None:
        # With the labels that Compose would give it: else it warns of a stranger at each start.
        labels = {COMPOSE_PROJECT: cache.here.profile.compose_name, "com.docker.compose.volume": f"cache-{CACHE}"}
        cache.here.engine.create_volume(mount.source, labels)
    return mount


def stale_inside(cache: JitCache) -> tuple[str, int, Callable[[], str]] | None:
    """What killed clears left in the profile's cache: where, how much, and what removes it."""
    place = cache.place()
    if place is None:
        return None
    request = {"operation": "sweep", "root": place.root}
    found = cache.ask(Done, place, {**request, "dry_run": True})
    name = next(iter(place.sources), place.root)
    return (name, found.bytes, lambda: "; ".join(cache.ask(Done, place, request).errors)) if found.count else None


def spaces(cache: JitCache) -> list[Space]:
    """Every namespace of this profile, the current one first, then the last used; none with `namespace: false`."""
    current = mount_here(cache.here)
    if not key_in(current.source):
        return []
    head = current.source[: -len(key_in(current.source))]
    if current.kind == "volume":
        there = list(cache.here.engine.volumes(head))
    else:
        there = [str(path) for path in Path(head).parent.glob("envgen-*") if not path.is_symlink()]
    found = [source for source in there if key_in(source) and source[: -len(key_in(source))] == head]
    made = [
        Space(key_in(source), source, current.kind, source == current.source, _users(cache, source)) for source in found
    ]
    return sorted(_measured(cache, made), key=lambda space: (not space.current, -space.used))


def _users(cache: JitCache, source: str) -> tuple[str, ...]:
    """Containers, running or not, that have it mounted, or something inside of it; not what killed runs left."""
    left = {one.id for one in cache.here.engine.leftovers()}
    return tuple(
        container.name
        for container in cache.here.engine.containers(all=True)
        if container.id not in left and any(f"{m.source}/".startswith(f"{source}/") for m in container.mounts)
    )


def _ask(cache: JitCache, mounts: Sequence[Mount], **request: Any) -> Done:
    place = throw_away(cache.here, "/", *mounts)
    return cache.ask(Done, place, {"operation": "spaces", **request})


def _measured(cache: JitCache, found: Sequence[Space]) -> list[Space]:
    if not found:
        return []
    mounts = [Mount(s.source, f"/envgen-spaces/{n}", s.kind, read_only=True) for n, s in enumerate(found)]
    measured = _ask(cache, mounts, roots=[mount.target for mount in mounts]).spaces
    if len(measured) != len(found):
        raise EngineError(f"the answer has {len(measured)} spaces for {len(found)} that were asked about")
    return [replace(space, **vars(one)) for space, one in zip(found, measured, strict=True)]


def remove(cache: JitCache, space: Space) -> str:
    """Remove a namespace; why it stayed, or nothing."""
    if _users(cache, space.source):
        return "it is in use since a moment ago"
    if space.kind == "volume":
        cache.here.engine.remove_volume(space.source)
        return ""
    mount = Mount(str(Path(space.source).parent), "/envgen-parent", "bind")
    errors = _ask(cache, [mount], parent=mount.target, remove=[Path(space.source).name]).errors
    return errors[0] if errors else ""
