"""The other caches of the profile's containers, as the agent found them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from envgen.engine.base import Mount
from envgen.jitcache.place import Place
from envgen.jitcache.service import JitCache
from envgen.jitcache.space import throw_away
from envgen.render.environment import service_env
from envgen.render.namespace import mounts_of


@dataclass(frozen=True)
class Kind:
    """One cache. ``moved_by``: the variable that puts it there now; empty: its default place. ``variables``: those
    that can. ``entries``: what was (or would be) removed; ``others``: what stayed because it looks foreign."""

    kind: str
    path: str
    variables: tuple[str, ...]
    moved_by: str
    exists: bool
    bytes: int
    files: int
    modified: float
    problem: str
    entries: tuple[str, ...]
    others: tuple[str, ...]
    errors: tuple[str, ...]


@dataclass(frozen=True)
class Kinds:
    """The agent's answer."""

    kinds: tuple[Kind, ...]


def kinds(cache: JitCache, wanted: Sequence[str], *, clear: bool = False, dry_run: bool = False) -> list[Kind]:
    """Look at (or clear) the wanted kinds, in a running service or in a throw-away container with the same mounts.

    RefusedError, with nothing changed, while a process uses a file of theirs.
    """
    place = _somewhere(cache)
    request = {"operation": "kinds", "kinds": list(wanted), "clear": clear, "dry_run": dry_run}
    if place.container is None:
        request["environ"] = service_env(cache.profile)
    return list(cache.ask(Kinds, place, request).kinds)


def _somewhere(cache: JitCache) -> Place:
    """A running service, even without FlashInfer's cache; else the image with every cache of the profile mounted."""
    profile, engine = cache.profile, cache.engine
    running = [c for c in engine.containers(project=profile.compose_name) if c.state == "running"]
    if running:
        chosen = min(running, key=lambda c: (c.service, c.name))
        # No root: as the service's own user, whose home the default places lie in.
        return Place("", f"service {chosen.service or chosen.name}", chosen)
    image = engine.image(profile.image_name)
    mounts = [
        Mount(source, target, kind)
        for source, target, kind in mounts_of(profile, cache.root, image.labels if image else None)
        if kind != "volume" or engine.volume(source) is not None
    ]
    return throw_away(cache, *mounts)
