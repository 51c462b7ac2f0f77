"""Namespaces on the host's side: saving one, loading one, and removing those that were not used for long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from envgen import files
from envgen.engine.values import COMPOSE_PROJECT, Mount
from envgen.errors import EngineError, EnvgenError, NotFoundError, RefusedError, UsageError
from envgen.jitcache.place import CACHE, key_in, mount_here, mount_of, root_in, throw_away
from envgen.jitcache.service import JitCache
from envgen.text import reason_of

ARCHIVE = "/envgen-archive"  # where the archive is mounted


@dataclass(frozen=True)
class Moved:
    """A cache that was saved or loaded. ``replaced``: modules that had to go for it; ``key``: of its namespace."""

    root: str
    modules: int
    files: int
    bytes: int
    replaced: tuple[str, ...]
    problems: tuple[str, ...]
    key: str = ""


@dataclass(frozen=True)
class Measured:
    """What the agent says of one namespace. ``used``: seconds since 1970."""

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
    fate: str = "kept"  # kept, removed, or what went wrong


def made_mount(cache: JitCache) -> Mount:
    """Where the profile's cache is, made where it isn't there yet."""
    mount = mount_here(cache.engine, cache.profile, cache.root)
    if mount.kind == "bind":
        Path(mount.source).mkdir(parents=True, exist_ok=True)
    elif cache.engine.volume(mount.source) is None:
        # With the labels that Compose would give it: else it warns of a stranger at each start.
        labels = {COMPOSE_PROJECT: cache.profile.shared_name, "com.docker.compose.volume": f"cache-{CACHE}"}
        cache.engine.create_volume(mount.source, labels)
    return mount


def _move(cache: JitCache, mount: Mount, archive: Mount, operation: str, **more: Any) -> Moved:
    """Ask a container with the cache and the archive. It sees no process; holders are asked elsewhere."""
    root = root_in({}, cache.profile) or mount.target
    place = throw_away(cache.engine, cache.profile, root, mount, archive)
    key = key_in(mount.source)
    request = {"operation": operation, "root": place.root, "key": key, **more}
    return replace(cache.ask(Moved, place, request), key=key)


def save(cache: JitCache, target: Path, *, force: bool = False) -> Moved:
    """Write the cache into ``target``."""
    taken = RefusedError(f"{target} is there already", hint="name another file, or add --force")
    if target.exists() and not force:
        raise taken
    folder = target.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"the folder {folder} is not there")
    mount = _source_mount(cache)
    try:
        stage = files.Scratch("save", folder)
    except OSError as error:
        raise UsageError(f"nothing can be written in the folder {folder}: {reason_of(error)}") from None
    with stage as work:
        written = Path(work, "cache")
        written.touch(0o600)
        moved = _move(cache, mount, Mount(str(written), ARCHIVE, "bind"), "save", target=ARCHIVE)
        if not written.stat().st_size:
            raise EngineError(
                "the archive was written on the engine's machine, which is another one",
                hint="run this command on the machine where Docker runs",
            )
        try:
            if force:
                written.replace(target)
            else:
                files.name_new(str(written), str(target))
        except FileExistsError:
            raise taken from None
        except OSError as error:
            raise UsageError(f"{target} can't be written: {reason_of(error)}") from None
    return moved


def _source_mount(cache: JitCache) -> Mount:
    place = cache.place()
    mount = mount_of(place.container.mounts, place.root) if place and place.container else None
    if place and not place.container:
        mount = place.mounts[0]
    if mount is None:
        raise NotFoundError("there is no cache to save yet", hint="`envgen cache list` shows what is there")
    return Mount(mount.source, mount.target, mount.kind)


def load(cache: JitCache, source: Path, *, force: bool = False, replacing: bool = False) -> Moved:
    """Put a saved cache into the profile's namespace.

    ``force``: one of another environment too. ``replacing``: instead of modules that are there.
    """
    archive = Mount(str(source.absolute()), ARCHIVE, "bind", read_only=True)
    return _move(cache, made_mount(cache), archive, "load", source=ARCHIVE, force=force, replace=replacing)


def stale_inside(cache: JitCache) -> tuple[str, int, Callable[[], str]] | None:
    """What killed loads and clears left in the profile's cache: where, how much, and what removes it."""
    place = cache.place()
    if place is None:
        return None
    request = {"operation": "sweep", "root": place.root}
    found = cache.ask(Done, place, {**request, "dry_run": True})
    name = next(iter(place.sources), place.root)
    return (name, found.bytes, lambda: "; ".join(cache.ask(Done, place, request).errors)) if found.count else None


# Removing


def spaces(cache: JitCache) -> list[Space]:
    """Every namespace of this profile, the current one first, then the last used first."""
    current = mount_here(cache.engine, cache.profile, cache.root)
    if not key_in(current.source):
        raise NotFoundError(
            f"the cache of profile {cache.profile.name} has no namespaces: `namespace: false`",
            hint="`envgen cache clear --older-than 30d` clears old modules",
        )
    head = current.source[: -len(key_in(current.source))]
    if current.kind == "volume":
        there = list(cache.engine.volumes(head))
    else:
        there = [str(path) for path in Path(head).parent.glob("envgen-*") if not path.is_symlink()]
    found = [source for source in there if key_in(source) and source[: -len(key_in(source))] == head]
    made = [
        Space(key_in(source), source, current.kind, source == current.source, _users(cache, source)) for source in found
    ]
    return sorted(_measured(cache, made), key=lambda space: (not space.current, -space.used))


def _users(cache: JitCache, source: str) -> tuple[str, ...]:
    """Containers, running or not, that have it mounted, or something inside of it; not what killed runs left."""
    left = {one.id for one in cache.engine.leftovers()}
    return tuple(
        container.name
        for container in cache.engine.containers(all=True)
        if container.id not in left and any(f"{m.source}/".startswith(f"{source}/") for m in container.mounts)
    )


def _ask(cache: JitCache, mounts: Sequence[Mount], **request: Any) -> Done:
    place = throw_away(cache.engine, cache.profile, "/", *mounts)
    return cache.ask(Done, place, {"operation": "spaces", **request})


def _measured(cache: JitCache, found: Sequence[Space]) -> list[Space]:
    if not found:
        return []
    mounts = [Mount(s.source, f"/envgen-spaces/{n}", s.kind, read_only=True) for n, s in enumerate(found)]
    measured = _ask(cache, mounts, roots=[mount.target for mount in mounts]).spaces
    if len(measured) != len(found):
        raise EngineError(f"the answer has {len(measured)} spaces for {len(found)} that were asked about")
    return [replace(space, **vars(one)) for space, one in zip(found, measured, strict=True)]


def gc(cache: JitCache, keep: int, *, dry_run: bool) -> list[Space]:
    """Remove all namespaces but the ``keep`` that were used last. Never the current one, never one in use.

    The oldest goes first, so that an interrupted run has removed what was wanted least.
    """
    if not dry_run:
        for left in cache.engine.leftovers():  # they would hold their volumes
            cache.engine.remove_container(left.id)
    found = spaces(cache)
    doomed = [space for space in found[keep:] if not space.current and not space.users]
    fates = {space.source: "would go" if dry_run else _remove(cache, space) for space in reversed(doomed)}
    return [replace(space, fate=fates.get(space.source, "kept")) for space in found]


def _remove(cache: JitCache, space: Space) -> str:
    if _users(cache, space.source):
        return "kept: it is in use since a moment ago"
    try:
        if space.kind == "volume":
            cache.engine.remove_volume(space.source)
            return "removed"
        mount = Mount(str(Path(space.source).parent), "/envgen-parent", "bind")
        errors = _ask(cache, [mount], parent=mount.target, remove=[Path(space.source).name]).errors
    except EnvgenError as error:
        return f"not removed: {error}"
    return f"not removed: {errors[0]}" if errors else "removed"
