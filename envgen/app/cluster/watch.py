"""Watch the ranks of a service: their containers, logs and engines. The end of one is noticed
within a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event, Lock

from envgen.deployment import Deployment
from envgen.engine.client import Engine
from envgen.engine.process import in_background
from envgen.engine.values import Container
from envgen.errors import EngineError
from envgen.profile.service import Ready
from envgen.serve import follow
from envgen.serve.ended import StartFailure, ending, log_text
from envgen.serve.follow import Follower, Kind
from envgen.serve.wait import Evidence

POLL = 0.5  # seconds between two checks of a container
READ = 5.0  # seconds between two readings of a log
LOST = 10.0  # seconds without an answer of its engine after which a rank is lost
SETTLE = 2.0  # seconds for a last check of the others when one has ended
# NCCL's log lines (NCCL_DEBUG=INFO is rendered) if it does not use a machine's RDMA devices.
OVER_TCP = {"rdma": r"NCCL INFO (Channel .* via NET/Socket|NET/IB : No device found)"}


@dataclass
class WatchedRank:
    """A watched container. ``evidence``: what its log has shown, if that matters."""

    deployment: Deployment
    container: Container
    follower: Follower
    evidence: Evidence | None = None

    @property
    def engine(self) -> Engine:
        """The engine, over the last connection."""
        return self.follower.engine


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
        reads = None if ready is None else READ
        follower = Follower(
            deployment.engine,
            container.id,
            pause=POLL,
            reads=reads,
            connect=deployment.reconnected,
        )
        rank = WatchedRank(deployment, container, follower)
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
        for event in rank.follower.events():
            if self.over.is_set():
                return
            self.take(rank, event)

    def take(self, rank: WatchedRank, event: follow.Event) -> None:
        """What an event of a rank means."""
        container = event.container
        gone = event.kind is Kind.ENDED
        if event.kind is Kind.LOST and event.error:
            self._silent(rank, event.error, event.seconds)
        elif gone or (container is not None and not container.running):
            self.report(rank, ending(container))
        elif event.kind is Kind.LINE:
            self._read(rank, event.line)
        elif event.kind is Kind.RUNNING:
            self._offline = False

    def _silent(self, rank: WatchedRank, error: EngineError, seconds: float) -> None:
        """After ``patience`` the rank of a silent engine is lost, unless none answers."""
        if seconds <= self.patience:
            return
        why = error.message
        reason = f"its engine has not answered for {self.patience:g} s: {why}"
        others = [one.follower.answered for one in self.ranks if one is not rank]
        if not others or time.monotonic() - max(others) < LOST:
            self.report(rank, StartFailure(reason, says_all=True))
        elif not self._offline:
            self._offline = True
            self.say("  no machine answers: check the network of this one; still trying")

    def finish_reading(self) -> None:
        """Read what the logs have shown since they were read last."""
        for rank in self.ranks:
            if rank.evidence is not None:
                with suppress(EngineError):  # its events have it
                    for line in rank.follower.new_lines(rank.container):
                        self._read(rank, line)

    def _read(self, rank: WatchedRank, line: str) -> None:
        if rank.evidence is None:
            return
        rank.evidence.feed(line)
        if rank.evidence.forbidden is None:
            return
        name, found = rank.evidence.forbidden
        what = f"matches ready.forbid.{name}"
        if name in OVER_TCP:
            what = "shows that NCCL uses TCP, not RDMA"
        reason = f"its log {what}: {log_text(found)[:200]!r}"
        self.report(rank, StartFailure(reason, rank.container, says_all=True))

    def report(self, rank: WatchedRank, failure: StartFailure) -> None:
        """Report a failed rank. If another one ended before it, ``first`` gets that one."""
        with self._lock:
            if self.first.done() or self.over.is_set():
                return
            others = [self._ended(one) for one in self.ranks if one is not rank]
            ends = [end for end in others if end]
            own = self._ended(rank) if ends else None
            when = own[0] if own else "~"
            ends.insert(0, (when, rank, failure))
            _, first, why = min(ends, key=lambda end: end[0])
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
        wait([answer], SETTLE)
        if not answer.done() or isinstance(answer.exception(), EngineError):
            return None
        return answer.result()
