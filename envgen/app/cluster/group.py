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
from envgen.deployment import LiveService
from envgen.engine.process import in_background
from envgen.errors import EnvgenError, Problem, ServiceError, named
from envgen.profile.service import Ready
from envgen.serve import start as serve_start
from envgen.serve.ended import StartFailure
from envgen.serve.start import CREATE, INSTALL, Start, StartResult
from envgen.serve.wait import SICKNESS, ReadyResult
from envgen.text import progress, reason_of


@dataclass(frozen=True)
class Group:
    """The ranks of one service, the head first."""

    ranks: tuple[LiveService, ...]

    @property
    def name(self) -> str:
        """The service's."""
        return self.ranks[0].name

    def start(self, *, wait_for_it: bool, timeout: float | None) -> StartResult:
        """Start the workers, then the head; watch all ranks until the head answers.

        ServiceError if any rank ends: then all are stopped, and the error names the first to end.
        """
        head, *workers = self.ranks
        watch = Watch(progress, SICKNESS)
        began = time.monotonic()
        made = {}  # node -> the rank's container; "" until it has one
        for rank in (*workers, head):
            node = rank.deployment.node
            made[node] = ""
            try:
                started = self._begin(rank, watch)
                made[node] = started.container.id
                ready = None if started.already else head.described.ready or Ready()
                watch.add(rank.deployment, started.container, ready)
            except BaseException as error:
                watch.over.set()
                if isinstance(error, EnvgenError):
                    raise self._down(named(node, error), made) from None
                self.take_down(made)
                raise
            progress(f"  {node}: rank {self.ranks.index(rank)} is started")
        try:
            if not wait_for_it:
                return started
            awaited = self._awaited(watch, started, timeout)
            container = awaited.container or started.container
            seconds = time.monotonic() - began
            return replace(started, container=container, seconds=seconds, awaited=awaited)
        except KeyboardInterrupt:
            more = what_next(head)
            progress(f"\nno longer waiting or watching; {self.name} is still starting: {more}")
            raise
        finally:
            watch.over.set()

    def _awaited(self, watch: Watch, started: StartResult, timeout: float | None) -> ReadyResult:
        """How the head became ready. ServiceError if any rank ends before that."""
        head = watch.ranks[-1]
        start = self._start_of(self.ranks[0], watch)
        start.timeout = timeout
        start.already = started.already
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
                    # It ran before and keeps running.
                    raise self._error(self.ranks[0], watch, failure) from None
                # The cause may be another rank's end, which has not been reported yet.
                watch.report(head, failure)
        raise self._failed(watch, "is not ready")

    def stay(self) -> None:
        """Watch a running service until a rank ends; then stop all and raise ServiceError. Ctrl-C
        leaves it running.
        """
        watch = Watch(progress)
        try:
            for rank in self.ranks:
                watch.add(rank.deployment, rank.running())
            nodes = ", ".join(rank.deployment.node for rank in self.ranks)
            progress(f"watching {self.name} on {nodes}; Ctrl-C ends only the watching")
            progress("  if one ends, all are stopped; only a systemd unit starts them again")
            watch.first.result()
        finally:
            watch.over.set()
        raise self._failed(watch, "has failed")

    def _begin(self, rank: LiveService, watch: Watch) -> StartResult:
        """Start one rank, without waiting for it. If that fails, what was created on its machine is
        removed.
        """
        return self._start_of(rank, watch).run((CREATE, INSTALL))

    def _start_of(self, rank: LiveService, watch: Watch) -> Start:
        """The start of one rank."""
        return Start(rank, partial(self._error, rank, watch), self._say(rank, watch))

    def _say(self, rank: LiveService, watch: Watch) -> Callable[[str], None]:
        node = rank.deployment.node

        def say(line: str) -> None:
            if not watch.over.is_set() or node == watch.culprit:
                progress(type(line)(f"  {node}: {line.strip()}"))

        return say

    def _error(
        self, rank: LiveService, watch: Watch, failure: StartFailure, verdict: str = "is not ready"
    ) -> ServiceError:
        """The error for a rank that failed, after a crash bundle of all machines."""
        hint = "`envgen nodes check` compares the machines; the crash bundle has the logs of all"
        return failed(
            rank,
            failure,
            machines=self.ranks,
            verdict=verdict,
            hint=hint,
            say=self._say(rank, watch),
        )

    def _failed(self, watch: Watch, verdict: str) -> EnvgenError:
        """Stop all ranks. Returns the error, which names the first rank that ended as the cause."""
        first, failure = watch.first.result()
        watch.over.set()
        # Reconnected where necessary.
        engines = {one.deployment.node: one.engine for one in watch.ranks}
        ranks = {}
        for rank in self.ranks:
            node = rank.deployment.node
            engine = engines.get(node, rank.engine)
            deployment = rank.deployment.with_cached(engine=engine)
            ranks[node] = rank.on(deployment)
        now = Group(tuple(ranks.values()))
        node = first.deployment.node
        error = now._error(ranks[node], watch, failure, verdict)
        made = {one.deployment.node: one.container.id for one in watch.ranks}
        at = list(ranks).index(node)
        return now._down(named(f"{node} (rank {at})", error), made)

    def _down(self, error: EnvgenError, made: Mapping[str, str]) -> EnvgenError:
        left = [Problem(line) for line in self.take_down(made)]
        error.problems = (*error.problems, *left)
        return error

    def take_down(self, made: Mapping[str, str] | None = None) -> list[str]:
        """Stop and remove the ranks' containers in parallel: ``made`` (node -> id), or all that
        there are.

        A container that has replaced one of ``made`` stays. Returns what could not be done, with
        the command to type on that machine.
        """

        def remove(rank: LiveService) -> str:
            node = rank.deployment.node
            try:
                for container in rank.containers(all=True):
                    if made is None or container.id == made[node]:
                        rank.engine.stop_and_remove(container.id)
            except EnvgenError as error:
                return cleanup_hint(node, rank.profile, reason_of(error))
            return ""

        begun = [rank for rank in self.ranks if made is None or rank.deployment.node in made]
        with ThreadPoolExecutor(len(self.ranks)) as pool:
            return [line for line in pool.map(remove, begun) if line]
