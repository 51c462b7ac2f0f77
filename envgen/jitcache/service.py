"""FlashInfer's cache of one profile: list, clear, record baselines; and what must be restarted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

from envgen.binding import JsonDict, JsonObject, ShapeError, bind
from envgen.deployment import Deployment
from envgen.engine.values import COMPOSE_PROJECT, MEMORY, Container
from envgen.errors import EngineError, NotFoundError, RefusedError
from envgen.inside import run
from envgen.inside.jit.locks import BATCH
from envgen.inside.jit.shapes import (
    AgentFailed,
    AgentRefusal,
    Cleared,
    Inventory,
    RecordedBaseline,
)
from envgen.jitcache.place import (
    CACHE,
    AgentHost,
    Query,
    arch_folders,
    find_place,
    root_in,
)
from envgen.render.environment import service_env
from envgen.text import did_you_mean, reason_of, visible

TIMEOUT = 900.0  # seconds; a million files take three minutes
ROOT_USER = "0:0"
AGENT = run.Program("jit/main", watch=True, bytes=64 << 20)

P = TypeVar("P", Inventory, RecordedBaseline, Cleared)
T = TypeVar("T")
NOTHING = Query()


@dataclass(frozen=True)
class JitCache:
    """FlashInfer's cache of one profile."""

    deployment: Deployment

    def require_own(self) -> None:
        """RefusedError if another project folder created the profile's cache."""
        mount = self.deployment.caches.get(CACHE)
        if mount is None or mount.kind != "volume":
            return
        other = self.deployment.volume_elsewhere(mount.source)
        if other is not None:
            name = f"{self.deployment.profile.project}-2"
            hint = f"clear it there; to have a cache of its own, write `name: {name}` into envgen.local.yaml"
            raise RefusedError(f"{other} created the volume {mount.source}", hint=hint)

    def place(self) -> AgentHost | None:
        """Where the agent runs; None before the cache exists."""
        return find_place(self.deployment)

    def inventory(self, query: Query = NOTHING, *, thorough: bool = False) -> Inventory:
        """The modules of a query. NotFoundError for a name or glob that matches nothing.

        ``thorough``: read every file that they were compiled from, and name the changed ones.
        """
        place = self.place()
        if place is None and not query.patterns:
            return Inventory(root_in({}, self.deployment.profile), False)
        return self._judged(Inventory, query, "list", place, thorough=thorough)[1]

    def baseline(self, query: Query, *, since: int = 0) -> RecordedBaseline:
        """Record what the modules were compiled from. ``since``: when envgen began to compile them
        (ns), or 0.
        """
        return self._judged(RecordedBaseline, query, "baseline", since=since)[1]

    def clear(
        self, query: Query, *, everything: bool = False, dry_run: bool = False, stale: bool = False
    ) -> Cleared:
        """Clear the modules of a query; without patterns those only with ``everything`` or
        ``stale`` (only modules that are), and else what killed runs left.

        RefusedError, with nothing changed, while one of the modules is being built.
        """
        place, cleared = self._judged(
            Cleared, query, "clear", all=everything, dry_run=dry_run, stale=stale
        )
        users = self._users(place) if cleared.modules else []
        return replace(cleared, restart=tuple(sorted(map(self._label, users))))

    def keep_proven(self, place: AgentHost) -> tuple[list[str], list[str]]:
        """Clear each module that is not certainly what it would be if it were compiled now; those
        kept and cleared.
        """
        _, inventory = self._judged(Inventory, NOTHING, "list", place, thorough=True, blind=False)
        kept = []
        others: dict[tuple[str, str], list[str]] = {}
        for module in inventory.modules:
            if (module.state, module.baseline, module.guess) == ("fresh", "recorded", False):
                kept.append(module.name)
            else:
                build = (module.version, module.arch)
                others.setdefault(build, []).append(module.name)
        cleared = []
        for (version, arch), names in others.items():
            query = Query(tuple(names), version, (arch,))
            self._judged(Cleared, query, "clear", place)
            cleared += names
        return kept, cleared

    def drop(self, place: AgentHost) -> None:
        """Clear all modules."""
        self._judged(Cleared, NOTHING, "clear", place, all=True)

    def _judged(
        self,
        kind: type[P],
        query: Query,
        operation: str,
        place: AgentHost | None = None,
        **more: Any,
    ) -> tuple[AgentHost, P]:
        """Where the agent ran, and its answer to an operation that judges modules. The request has
        the environment to judge by; in a running service the agent uses the service's.
        """
        place = place or self.place()
        if place is None:
            raise not_found(AgentRefusal(missing=query.patterns))
        environ = {"CUDA_HOME": self.deployment.profile.cuda.HOME.path}
        if place.container is None:
            environ |= service_env(self.deployment.profile)
        request = {
            **vars(query),
            "operation": operation,
            "root": place.root,
            "environ": environ,
            "expected_archs": sorted(arch_folders(self.deployment.profile.cuda.arch_list)),
            "blind": place.container is None,
        }
        answer = self.ask(kind, place, {**request, **more})
        return place, replace(answer, place=place.shown)

    def ask(self, kind: type[T], place: AgentHost, request: JsonObject) -> T:
        """The agent's answer to one operation. Its refusals are raised as errors."""
        document = self._send(place, request)
        try:
            if document.get("ok") is True:
                return bind(kind, document.get("result"))
            failure = bind(AgentFailed, document)
        except ShapeError as error:
            raise EngineError(
                f"unexpected answer about the JIT cache: {reason_of(error)}"
            ) from None
        if failure.kind == "not_found":
            raise not_found(failure.data)
        if failure.kind == "refused":
            held = "; ".join(map(what_is_locked, failure.data.held))
            if held:
                hint = "wait until it is done, or restart the service that builds it"
                raise RefusedError(f"nothing was changed: {held}", hint=hint)
            raise RefusedError(failure.message)
        raise EngineError(f"the JIT cache could not be read in {place.shown}: {failure.message}")

    def _send(self, place: AgentHost, request: JsonObject) -> JsonDict:
        if place.container is None:
            execute = run.in_image(
                self.deployment.engine,
                place.image,
                mounts=place.mounts,
                user=ROOT_USER,
                hold=True,
                memory=MEMORY,
            )
        else:
            # Root may delete what any service wrote.
            execute = run.in_container(
                self.deployment.engine, place.container.id, user=ROOT_USER, hold=True
            )
        python = self.deployment.profile.base.python
        answer = run.ask(execute, python, AGENT, request, timeout=TIMEOUT)
        if isinstance(answer, run.NoAnswer):
            reason = " / ".join([str(answer), *answer.stack[-3:]])
            hint = run.NEEDED
            if place.container is not None:
                now = self.deployment.engine.container(place.container.id)
                if now is None or not now.running:
                    hint = "its container has ended meanwhile: run the command again"
            raise EngineError(f"{python} in {place.shown} gave no answer: {reason}", hint=hint)
        return answer

    # Other processes

    def _users(self, place: AgentHost) -> list[Container]:
        """The running containers, of any project, that mount the same volume or folder."""
        users = []
        for container in self.deployment.engine.containers():
            sources = {mount.source for mount in container.mounts}
            if container.state == "running" and sources & place.sources:
                users.append(container)
        return users

    def _label(self, container: Container) -> str:
        """The service's name if it belongs to this profile, else the container's."""
        ours = container.labels.get(COMPOSE_PROJECT) == self.deployment.profile.compose_name
        return container.service if ours and container.service else container.name


def not_found(data: AgentRefusal) -> NotFoundError:
    """The error for names and globs that match nothing, with near matches."""
    hint = did_you_mean(data.names, *data.missing, most=3)
    message = (
        f"no module matches {', '.join(map(visible, data.missing))}"
        if data.missing
        else "the cache is empty"
    )
    return NotFoundError(message, hint=hint or "`envgen cache list` shows the modules")


def what_is_locked(lock: str) -> str:
    """``0.5.3/121a/cached_ops/tmp/page.lock`` → ``page (0.5.3/121a) is being built``."""
    head, _, name = lock.rpartition("/")
    where, _, _ = head.partition("/cached_ops")
    if name == BATCH:
        return f"a batch build runs in {where}"
    return f"{visible(name.removesuffix('.lock'))} ({where}) is being built"
