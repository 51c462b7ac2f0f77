"""Watch the ranks of a service: their containers, logs and engines. The end of one is noticed
within a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import Any

from envgen.deployment import Deployment
from envgen.deployment.host import docker_environment
from envgen.engine.client import Engine, connect
from envgen.engine.process import in_background
from envgen.engine.values import Container
from envgen.errors import EngineError
from envgen.profile.service import Ready
from envgen.serve.ended import StartFailure, ending, log_text
from envgen.serve.wait import Evidence, LogReader

POLL = 0.5  # seconds between two checks of a container
READ = 5.0  # seconds between two readings of a log
LOST = 10.0  # seconds without an answer of its engine after which a rank is lost
SETTLE = 2.0  # seconds for a last check of the others when one has ended
QUIET = 120.0  # seconds without output after which that is printed
# NCCL's log lines (NCCL_DEBUG=INFO is rendered) if it does not use a machine's RDMA devices.
OVER_TCP = {"rdma": r"NCCL INFO (Channel .* via NET/Socket|NET/IB : No device found)"}


@dataclass
class WatchedRank:
    """A watched container. ``answered``: time of its engine's last answer; ``read``: of the last
    reading of its log.

    ``evidence``: what its log has shown, if that matters; ``wrote``: time of its last output.
    """

    deployment: Deployment
    container: Container
    engine: Engine
    answered: float
    read: float = 0.0
    evidence: Evidence | None = None
    reader: LogReader | None = None
    wrote: float = 0.0
    last: str = ""
    reading: Any = field(default_factory=Lock)


@dataclass
class Watch:
    """Watches ranks until one ends or is lost; ``first`` gets that rank and the reason. Set
    ``over`` to stop watching.

    ``patience``: seconds that an engine may be silent. While its machine loads 61 GiB, one may need
    more.
    """

    say: Callable[[str], None]
    patience: float = LOST
    ranks: list[WatchedRank] = field(default_factory=list)
    first: Future[tuple[WatchedRank, StartFailure]] = field(default_factory=Future)
    over: Event = field(default_factory=Event)
    culprit: str = ""

    def __post_init__(self) -> None:
        self._lock = Lock()
        self._offline = False

    def add(self, deployment: Deployment, container: Container, ready: Ready | None = None) -> None:
        """Watch another container. ``ready``: what its log must not show; what it must is asked of
        the head's.
        """
        rank = WatchedRank(
            deployment, container, deployment.engine, time.monotonic(), wrote=time.monotonic()
        )
        if ready is not None:
            over_tcp = OVER_TCP if deployment.profile.nodes[deployment.node].rdma else {}
            rank.evidence = Evidence({}, {**ready.forbid, **over_tcp})
        self.ranks.append(rank)
        in_background(lambda: self._guarded(lambda: self._follow(rank)))

    def _guarded(self, work: Callable[[], None]) -> None:
        """Do ``work``; its exception becomes that of ``first``, so that a defect does not end the
        watch silently.
        """
        try:
            work()
        except BaseException as error:
            if not self.first.done():
                self.first.set_exception(error)

    def _follow(self, rank: WatchedRank) -> None:
        while not self.over.wait(POLL):
            try:
                container = rank.engine.container(rank.container.id)
                rank.answered, self._offline = time.monotonic(), False
            except EngineError as error:
                self._silent(rank, error)
                continue
            if container is None or not container.running:
                self.report(rank, ending(container))
            elif time.monotonic() - rank.read > READ:
                rank.read = time.monotonic()
                self.read(rank)

    def _silent(self, rank: WatchedRank, error: EngineError) -> None:
        """Reconnect to an engine that does not answer; after ``patience`` its rank is lost, unless
        none answers.
        """
        if time.monotonic() - rank.answered > self.patience:
            reason = (
                f"its engine has not answered for {self.patience:g} s: {error.problems[0].message}"
            )
            others = [one for one in self.ranks if one is not rank]
            if not others or any(time.monotonic() - one.answered < LOST for one in others):
                self.report(rank, StartFailure(reason, says_all=True))
            elif not self._offline:
                self._offline = True
                self.say("  no machine answers: check the network of this one; still trying")
        try:
            rank.engine = connect(
                docker_environment(rank.deployment.profile.nodes[rank.deployment.node])
            )
            rank.reader = None
        except (EngineError, KeyError):
            return

    def read(self, rank: WatchedRank) -> None:
        """Read new lines of a rank's log."""
        if rank.evidence is None:
            return
        node = rank.deployment.node
        with rank.reading:
            rank.reader = rank.reader or LogReader(
                rank.engine, rank.container.id, rank.container.started_at
            )
            try:
                lines = rank.reader.new_lines()
            except EngineError:
                return  # _follow handles it
            for line in lines:
                rank.evidence.feed(line)
                rank.last = line
            if lines:
                rank.wrote = time.monotonic()
            elif (
                time.monotonic() - rank.wrote > QUIET and rank is not self.ranks[-1]
            ):  # the head's is shown anyway
                rank.wrote = time.monotonic()
                self.say(
                    f"  {node}: has written nothing for {QUIET:g} s; last: {log_text(rank.last)[:100]}"
                )
        if rank.evidence.forbidden is not None:
            name, line = rank.evidence.forbidden
            what = (
                "that NCCL uses TCP, not RDMA"
                if name in OVER_TCP
                else f"what ready.forbid.{name} names"
            )
            reason = f"its log shows {what}: {log_text(line)[:200]!r}"
            self.report(rank, StartFailure(reason, rank.container, says_all=True))

    def report(self, rank: WatchedRank, failure: StartFailure) -> None:
        """Report a failed rank. If another one ended before it, ``first`` gets that one."""
        with self._lock:
            if self.first.done() or self.over.is_set():
                return
            ended = [end for one in self.ranks if one is not rank and (end := self._ended(one))]
            mine = self._ended(rank) if ended else None
            _, first, why = min(
                [(mine[0] if mine else "~", rank, failure), *ended], key=lambda one: one[0]
            )
            self.culprit = first.deployment.node
            self.over.set()
            self.first.set_result((first, why))

    def _ended(self, rank: WatchedRank) -> tuple[str, WatchedRank, StartFailure] | None:
        """When (by its engine's clock) and how a rank ended; None while it runs, or if unknown."""

        def look() -> tuple[str, WatchedRank, StartFailure] | None:
            container = rank.engine.container(rank.container.id)
            if container is None or container.running:
                return None
            return container.finished_at or "~", rank, ending(container)

        answer = in_background(look)
        done = wait([answer], SETTLE).done
        return answer.result() if done and not isinstance(answer.exception(), EngineError) else None
