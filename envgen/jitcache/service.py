"""The host's side: list and clear, who holds a lock, and who must be restarted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from envgen.binding import ShapeError, bind
from envgen.engine.base import COMPOSE_PROJECT, Container, Engine
from envgen.errors import EngineError, EnvgenError, RefusedError
from envgen.inside.jit.module import Holder, Module
from envgen.inside.jit.procs import holders as local_holders
from envgen.jitcache.audit import Audit
from envgen.jitcache.model import (
    Building,
    Cleared,
    Failure,
    HeldLock,
    Inventory,
    Leftovers,
    Looked,
    Recorded,
    Refusal,
    Used,
    User,
)
from envgen.jitcache.place import Place, find_place, root_in
from envgen.jitcache.query import Query, arch_folders
from envgen.jitcache.talk import describe_holders, not_found, send, what_is_locked
from envgen.profile.model import Profile
from envgen.render.environment import service_env
from envgen.text import reason_of

L = TypeVar("L", Module, Building)
P = TypeVar("P", Inventory, Recorded, Audit, Cleared)
T = TypeVar("T")
NOTHING = Query()
LockId = tuple[int, int]  # device and inode of a lock file: the same in every container on this cache


class JitCache:
    """FlashInfer's cache of one profile."""

    def __init__(self, engine: Engine, profile: Profile, root: Path) -> None:
        self.engine = engine
        self.profile = profile
        self.root = root

    def inventory(self, query: Query, *, thorough: bool = False) -> Inventory:
        """Every module that the query chooses. NotFoundError for a name or glob that matches nothing.

        ``thorough``: every byte that it was compiled from is read, and files that speak against it are named.
        """
        place = find_place(self.engine, self.profile, self.root)
        if place is None and not query.patterns:
            return Inventory(root_in({}, self.profile), False, (), (), Leftovers(0, 0), ())
        place, found = self._judged(Inventory, query, "list", place, thorough=thorough)
        if found.building or any(module.locked for module in found.modules):
            found = self._name_holders(place, found)
        return found

    def baseline(self, query: Query, *, force: bool = False, since: int = 0) -> Recorded:
        """Record what the chosen modules are made of; not where files changed since, unless ``force``."""
        return self._judged(Recorded, query, "baseline", force=force, since=since)[1]

    def used(self) -> Used:
        """The modules that earlier runs used, whatever version they were of, also those that were cleared since."""
        place = find_place(self.engine, self.profile, self.root)
        return self.ask(Used, place, {"operation": "used", "root": place.root}) if place else Used()

    def record_missing(self, say: Callable[[str], None]) -> None:
        """Record baselines where a service runs (elsewhere the sources can't be seen) and modules have none."""
        place = find_place(self.engine, self.profile, self.root)
        if place is None or place.container is None:
            return
        names = tuple(sorted({m.name for m in self.inventory(Query()).modules if m.guess and m.state == "fresh"}))
        if names:
            recorded = [record.name for record in self.baseline(Query(names)).modules if record.recorded]
            if recorded:
                say(f"recorded baselines of {', '.join(sorted(set(recorded)))}")

    def audit(self) -> Audit:
        """The GPU code in every library of the cache and of the packages beside it."""
        names = [arch.sm for arch in self.profile.cuda.arch_list.archs]
        return self._judged(Audit, Query(), "audit", names=names)[1]

    def clear(
        self, query: Query, *, everything: bool = False, dry_run: bool = False, causes: Mapping[str, Any] | None = None
    ) -> Cleared:
        """Clear what the query chooses, or all that its version and arch leave (``everything``).

        ``causes`` (stale, guessed, foreign, older_than, changed) leave only what one of them speaks against.
        RefusedError, with nothing changed, while one of the modules is being built.
        """
        wanted = None if causes is None else dict(causes)
        place, cleared = self._judged(Cleared, query, "clear", all=everything, dry_run=dry_run, causes=wanted)
        users, unseen = self._users(place, cleared)
        restart = tuple(sorted({user.where for user in users if user.where}))
        return replace(cleared, users=users, unseen=unseen, restart=restart)

    def _judged(
        self, kind: type[P], query: Query, operation: str, place: Place | None = None, **more: Any
    ) -> tuple[Place, P]:
        """Where an operation was asked, and its answer. The agent is told what it needs to tell stale and foreign; a
        service's own environment counts, where one runs."""
        place = place or find_place(self.engine, self.profile, self.root)
        if place is None:
            raise not_found(Refusal(missing=tuple(query.patterns)), query)
        environ = {"CUDA_HOME": self.profile.cuda.home.path}
        if place.container is None:
            environ |= service_env(self.profile)
        request = {
            **query.request(operation, place.root), "python": self.profile.base.python, "environ": environ,
            "expected_archs": sorted(arch_folders(str(self.profile.cuda.arch_list))), "blind": place.container is None,
        }  # fmt: skip
        found = self.ask(kind, place, {**request, **more}, query)
        return place, replace(found, place=place.shown)

    def ask(self, kind: type[T], place: Place, request: Mapping[str, Any], query: Query = NOTHING) -> T:
        """The answer to one operation of the agent; its refusals as errors."""
        document = send(self.engine, self.profile.base.python, place, request)
        try:
            if document.get("ok") is True:
                return bind(kind, document.get("result"))
            failure = bind(Failure, document)
        except ShapeError as error:  # the container's fault
            raise EngineError(f"the answer about the JIT cache is not what was expected: {reason_of(error)}") from None
        if failure.kind == "not_found":
            raise not_found(failure.data, query)
        if failure.kind == "refused":
            raise self._held(place, failure.data.held) if failure.data.held else RefusedError(failure.message)
        raise EngineError(f"the JIT cache could not be read in {place.shown}: {failure.message}")

    # Other processes

    def _sharing(self, place: Place) -> list[Container]:
        """Other running containers, of whatever project, on the same volume or folder."""
        if not place.sources:
            return []
        own = place.container.id if place.container else ""
        others = [c for c in self.engine.containers() if c.state == "running" and c.id != own]
        return [c for c in others if place.sources & {mount.source for mount in c.mounts}]

    def _label(self, container: Container | None) -> str:
        """The service's name where it is one of this profile, else the container's."""
        if container is None:
            return ""
        ours = container.labels.get(COMPOSE_PROJECT) == self.profile.compose_name
        return container.service if ours and container.service else container.name

    def _look(self, container: Container, locks: Sequence[LockId], libraries: Sequence[Any]) -> Looked | None:
        """Ask one more container who holds or uses what; None when it can't answer (no Python in it, say)."""
        request = {"operation": "look", "locks": [list(lock) for lock in locks], "libraries": list(libraries)}
        try:
            return self.ask(Looked, Place("/", container.name, container), request)
        except EnvgenError:
            return None

    def _users(self, place: Place, cleared: Cleared) -> tuple[tuple[User, ...], int]:
        """Who has loaded what is gone, in all containers on this cache; and how many could not be asked."""
        libraries = [[inode, target.name] for target in cleared.modules for inode in target.libraries]
        if not libraries:
            return (), 0
        users = [replace(user, where=self._label(place.container)) for user in cleared.users]
        unseen = cleared.unseen if place.container else 0
        for container in self._sharing(place):
            seen = self._look(container, (), libraries)
            if seen is None:
                unseen += 1
                continue
            unseen += seen.unseen
            users += [replace(user, where=self._label(container)) for user in seen.users]
        return tuple(users), unseen

    def _holders(self, place: Place, locks: Sequence[LockId]) -> dict[LockId, list[Holder]]:
        """Who holds these locks, asked of the other containers on this cache, then of this machine."""
        found: dict[LockId, list[Holder]] = {lock: [] for lock in locks}
        for container in self._sharing(place):
            seen = self._look(container, locks, ())
            for lock, holders in zip(locks, seen.holders if seen else (), strict=False):
                found[lock] += [replace(holder, where=self._label(container)) for holder in holders]
        missing = [lock for lock in locks if not found[lock]]
        # A builder on the host itself, on a bind mount. Elsewhere (a remote engine) the numbers would mean nothing.
        if missing and self.engine.info().endpoint.startswith("unix://"):
            for lock, entries in local_holders(missing).items():
                found[lock] += [replace(bind(Holder, entry), where="this machine") for entry in entries]
        return found

    def _held(self, place: Place, held: Sequence[HeldLock]) -> RefusedError:
        unknown = [(lock.device, lock.inode) for lock in held if not lock.holders]
        asked = self._holders(place, unknown) if unknown else {}
        lines = []
        for lock in held:
            holders = [replace(holder, where=self._label(place.container)) for holder in lock.holders]
            holders = holders or asked.get((lock.device, lock.inode), [])
            lines.append(f"{what_is_locked(lock.lock)}, {describe_holders(holders)}")
        return RefusedError("nothing was changed: " + "; ".join(lines), hint="wait until it is done, or stop it")

    def _name_holders(self, place: Place, found: Inventory) -> Inventory:
        entries: list[Module | Building] = [*found.modules, *found.building]
        unknown = sorted({(e.lock[0], e.lock[1]) for e in entries if e.locked and not e.holders and len(e.lock) == 2})
        asked = self._holders(place, unknown) if unknown else {}
        own = self._label(place.container)

        def named(entry: L) -> L:
            if not entry.locked:
                return entry
            holders = [replace(holder, where=own) for holder in entry.holders]
            other = asked.get((entry.lock[0], entry.lock[1]), []) if len(entry.lock) == 2 else []
            return replace(entry, holders=list(holders or other))

        modules = tuple(named(module) for module in found.modules)
        return replace(found, modules=modules, building=tuple(named(batch) for batch in found.building))
