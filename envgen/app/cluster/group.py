"""A service on several machines: started together, watched together, stopped together.

vLLM's ranks hardly notice each other: an idle head never learns that a worker died, nor a worker
that its head died.
So when any container ends, with whatever exit code, all are stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from envgen.app.cluster.machines import cleanup_hint
from envgen.app.cluster.watch import Watch
from envgen.app.failed import failed
from envgen.app.start import what_next
from envgen.deployment import Deployment
from envgen.deployment.service import LiveService
from envgen.engine.process import in_background
from envgen.errors import EnvgenError, Problem, ServiceError, named
from envgen.profile.service import Ready
from envgen.serve import start as serve_start
from envgen.serve.ended import StartFailure
from envgen.serve.start import CREATE, INSTALL, Start, Started
from envgen.serve.wait import SICKNESS, Awaited
from envgen.text import progress, reason_of


@dataclass(frozen=True)
class Group:
    """The ranks of one service, the head first."""

    ranks: tuple[Deployment, ...]
    service: str

    def start(self, *, wait_for_it: bool, timeout: float | None) -> Started:
        """Start the workers, then the head; watch all ranks until the head answers.

        ServiceError if any rank ends: then all are stopped, and the error names the first to end.
        """
        head, *workers = self.ranks
        watch, at, began = Watch(progress, SICKNESS), "", time.monotonic()
        mine = dict[str, str]()  # node -> the rank's container; "" until it has one
        try:
            for deployment in (*workers, head):
                at = deployment.node
                mine[at] = ""
                started = self._begin(deployment, watch)
                mine[at] = started.container.id
                ready = (
                    None
                    if started.already
                    else head.profile.services[self.service].ready or Ready()
                )
                watch.add(deployment, started.container, ready)
                progress(f"  {at}: rank {self.ranks.index(deployment)} is started")
        except BaseException as error:
            watch.over.set()
            if isinstance(error, EnvgenError):
                raise self._down(named(at, error), mine) from None
            self.take_down(mine)
            raise
        try:
            if not wait_for_it:
                return started
            awaited = self._awaited(watch, started, timeout)
            container = head.engine.container(started.container.id) or started.container
            return replace(
                started, container=container, seconds=time.monotonic() - began, awaited=awaited
            )
        except KeyboardInterrupt:
            more = what_next(self._live(head))
            progress(f"\nno longer waiting or watching; {self.service} is still starting: {more}")
            raise
        finally:
            watch.over.set()

    def _awaited(self, watch: Watch, started: Started, timeout: float | None) -> Awaited:
        """How the head became ready. ServiceError if any rank ends before that."""
        head = watch.ranks[-1]
        start = self._start_of(head.deployment, watch)
        start.timeout, start.already = timeout, started.already
        ready = in_background(lambda: serve_start.wait(start, started.container.id))
        either: list[Future[Any]] = [ready, watch.first]
        wait(either, return_when=FIRST_COMPLETED)
        if not watch.first.done():
            try:
                awaited = ready.result()
                watch.finish_reading()
                if not watch.first.done():
                    return awaited
            except StartFailure as failure:
                if started.already and failure.container and failure.container.running:
                    raise self._error(
                        head.deployment, watch, failure
                    ) from None  # it ran before and keeps running
                # The cause may be another rank's end, which has not been reported yet.
                watch.report(head, failure)
        raise self._failed(watch, "is not ready")

    def stay(self) -> None:
        """Watch a running service until a rank ends; then stop all and raise ServiceError. Ctrl-C
        leaves it running.
        """
        watch = Watch(progress)
        try:
            for deployment in self.ranks:
                watch.add(deployment, LiveService(deployment, self.service).running())
            nodes = ", ".join(one.node for one in self.ranks)
            progress(f"watching {self.service} on {nodes}; Ctrl-C ends only the watching")
            progress("  if one ends, all are stopped; only a systemd unit starts them again")
            watch.first.result()
        finally:
            watch.over.set()
        raise self._failed(watch, "has failed")

    def _begin(self, deployment: Deployment, watch: Watch) -> Started:
        """Start one rank, without waiting for it. If that fails, what was created on its machine is
        removed.
        """
        return self._start_of(deployment, watch).run((CREATE, INSTALL))

    def _start_of(self, deployment: Deployment, watch: Watch) -> Start:
        """The start of one rank."""
        on_failure = partial(self._error, deployment, watch)
        return Start(self._live(deployment), on_failure, self._say(deployment, watch))

    def _live(self, deployment: Deployment) -> LiveService:
        return LiveService(deployment, self.service)

    def _say(self, deployment: Deployment, watch: Watch) -> Callable[[str], None]:
        def say(line: str) -> None:
            if not watch.over.is_set() or deployment.node == watch.culprit:
                progress(type(line)(f"  {deployment.node}: {line.strip()}"))

        return say

    def _error(
        self,
        deployment: Deployment,
        watch: Watch,
        failure: StartFailure,
        verdict: str = "is not ready",
    ) -> ServiceError:
        """The error for a rank that failed, after a crash bundle of all machines."""
        hint = "`envgen nodes check` compares the machines; the crash bundle has the logs of all"
        return failed(
            self._live(deployment),
            failure,
            machines=[self._live(rank) for rank in self.ranks],
            verdict=verdict,
            hint=hint,
            say=self._say(deployment, watch),
        )

    def _failed(self, watch: Watch, verdict: str) -> EnvgenError:
        """Stop all ranks. Returns the error, which names the first rank that ended as the cause."""
        rank, failure = watch.first.result()
        watch.over.set()
        engines = {
            one.deployment.node: one.engine for one in watch.ranks
        }  # reconnected where necessary
        now = Group(
            tuple(one.with_cached(engine=engines.get(one.node, one.engine)) for one in self.ranks),
            self.service,
        )
        at, deployment = next(
            (at, one) for at, one in enumerate(now.ranks) if one.node == rank.deployment.node
        )
        mine = {one.deployment.node: one.container.id for one in watch.ranks}
        return now._down(
            named(
                f"{deployment.node} (rank {at})", now._error(deployment, watch, failure, verdict)
            ),
            mine,
        )

    def _down(self, error: EnvgenError, mine: Mapping[str, str]) -> EnvgenError:
        error.problems = (*error.problems, *(Problem(line) for line in self.take_down(mine)))
        return error

    def take_down(self, mine: Mapping[str, str] | None = None) -> list[str]:
        """Stop and remove the ranks' containers in parallel: ``mine`` (node -> id), or all that
        there are.

        A container that has replaced one of ``mine`` stays. Returns what could not be done, with
        the command to type on that machine.
        """

        def remove(deployment: Deployment) -> str:
            try:
                containers = deployment.engine.containers(
                    deployment.profile.compose_name, self.service, all=True
                )
                for container in containers:
                    if mine is None or container.id == mine[deployment.node]:
                        deployment.engine.stop_and_remove(container.id)
            except EnvgenError as error:
                return cleanup_hint(deployment.node, deployment.profile, reason_of(error))
            return ""

        begun = [deployment for deployment in self.ranks if mine is None or deployment.node in mine]
        with ThreadPoolExecutor(len(self.ranks)) as pool:
            return [line for line in pool.map(remove, begun) if line]
