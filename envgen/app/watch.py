"""Watching the ranks of a service: their containers, the cable between them, and whether the head still answers.

A container's end is seen within a second, whatever its exit code. What vLLM hides is looked for: an interface that is
down, a connection that the other machine does not answer, a request that hangs.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import Any

from envgen.app import nodes
from envgen.app.places import Opened
from envgen.engine.client import Engine, connect
from envgen.engine.process import in_background
from envgen.engine.values import Container
from envgen.errors import EngineError
from envgen.profile.model import Ready
from envgen.serve.launch import key_of, reachable_url
from envgen.serve.readiness import Question, ask, tokens
from envgen.serve.wait import Evidence, Failure, LogReader, how_ended, log_text
from envgen.text import size

POLL = 0.5  # seconds between two looks at a container
LOST = 10.0  # seconds without an answer of its engine after which a rank counts as gone
LINKS = 5.0  # seconds between two looks at interface and connections
DOUBT = 5.0  # seconds that such trouble must last: a link may flap
RETRIES = 3  # of one packet that nothing answers
PAUSE = 5.0  # seconds without a turn after which this process was stopped: a closed lid
GRACE = 30.0  # seconds after that until ssh has noticed what it lost, and engines answer again
SETTLE = 2.0  # seconds for a last look at the others when one has ended
AGAIN = 5.0  # seconds between a canary that failed and the next
FAILURES = 2  # canaries in a row that are the end
LATE = 3.0  # seconds without an answer of its engine after which a rank may be the cause of what others see
QUIET = 120.0  # seconds that a worker may write nothing until that is said
# NCCL's own lines (NCCL_DEBUG=INFO is rendered) where it does not use the RDMA devices that a machine has.
OVER_TCP = {"rdma": r"NCCL INFO (Channel .* via NET/Socket|NET/IB : No device found)"}
_FREE = re.compile(r"^\S.*\s(\d+)\s+\d+%\s+/$", re.MULTILINE)  # of `df -Pk /`: KiB
# A line of /proc/net/tcp or tcp6: the other end (IPv4, at the end of a mapped address), 01 for established or 02 for
# connecting, and how often the packet under way has been sent again.
_CONNECTION = re.compile(
    r"\s*\d+: [0-9A-F]+:[0-9A-F]{4} (?:[0-9A-F]{24})?([0-9A-F]{8}):([0-9A-F]{4}) (01|02) \S+ \S+ ([0-9A-F]{8}) "
)


@dataclass
class Rank:
    """One container that is watched. ``heard``: when its engine last answered; ``doubt``: trouble, and since when.

    ``evidence``: what its log has shown, where that counts; ``wrote``: when it last grew.
    """

    here: Opened
    container: Container
    engine: Engine
    heard: float
    looked: float = 0.0
    doubt: tuple[str, str, float] | None = None
    is_full: bool = False  # Docker's disk there
    evidence: Evidence | None = None
    reader: LogReader | None = None
    wrote: float = 0.0
    last: str = ""
    reading: Any = field(default_factory=Lock)


@dataclass
class Watch:
    """Looks at ranks until one of them ends or is lost: ``first`` is the one, and why. ``over`` ends the looking.

    ``patience``: seconds that an engine may be silent; one whose machine loads 60 GB has been seen to need more.
    """

    say: Callable[[str], None]
    patience: float = LOST
    ranks: list[Rank] = field(default_factory=list)
    first: Future[tuple[Rank, Failure]] = field(default_factory=Future)
    over: Event = field(default_factory=Event)
    culprit: str = ""

    def __post_init__(self) -> None:
        self._lock = Lock()
        self._awake = Awake(self.say)
        self._offline = False
        in_background(self._tick)

    def _tick(self) -> None:
        while not self.over.wait(1):
            self._awake.since()

    def add(self, here: Opened, container: Container, ready: Ready | None = None) -> None:
        """Watch this one, too. ``ready``: what its log must show, and must not."""
        rank = Rank(here, container, here.engine, time.time(), wrote=time.time())
        if ready is not None:
            over_tcp = OVER_TCP if here.profile.nodes[here.node].rdma else {}
            rank.evidence = Evidence(ready.expect, {**ready.forbid, **over_tcp})
        self.ranks.append(rank)
        in_background(lambda: self._guarded(lambda: self._follow(rank)))

    def _guarded(self, work: Callable[[], None]) -> None:
        """A watch that ends by a defect of its own must not look like one that sees nothing."""
        try:
            work()
        except BaseException as error:
            if not self.first.done():
                self.first.set_exception(error)

    def _follow(self, rank: Rank) -> None:
        while not self.over.wait(POLL):
            try:
                container = rank.engine.container(rank.container.id)
                rank.heard, self._offline = time.time(), False
            except EngineError as error:
                self._silent(rank, error)
                continue
            if container is None or not container.running:
                self.report(rank, ending(container))
            elif rank.here.node and time.time() - rank.looked > (1 if rank.doubt else LINKS):
                self._look_at_links(rank)
                self.read(rank)

    def _silent(self, rank: Rank, error: EngineError) -> None:
        """Its engine does not answer: connect again; after a while it counts as gone, unless none answers."""
        if time.time() - max(rank.heard, self._awake.since()) > self.patience:
            reason = f"its engine has not answered for {self.patience:g} s: {error.problems[0].message}"
            others = [one for one in self.ranks if one is not rank]
            if any(one.doubt for one in others):
                reason += "; nothing answers on the cable either: is the machine switched off?"
            if not others or any(time.time() - one.heard < LOST for one in others):
                self.report(rank, Failure(reason, says_all=True))
            elif not self._offline:
                self._offline = True
                self.say("  no machine answers: has this one lost its network? still trying")
        try:
            rank.engine = connect(nodes.environment(rank.here.profile.nodes[rank.here.node]))
            rank.reader = None
        except (EngineError, KeyError):
            return

    def _look_at_links(self, rank: Rank) -> None:
        rank.looked = time.time()
        interface = rank.here.profile.nodes[rank.here.node].interface
        peers = {one.here.profile.nodes[one.here.node].address: one.here.node for one in self.ranks if one is not rank}
        paths = [f"/sys/class/net/{interface}/operstate", "/proc/net/tcp", "/proc/net/tcp6"]
        words = ["sh", "-c", 'cat "$@"; df -Pk /', "sh", *paths]
        try:
            text = rank.engine.exec(rank.container.id, words, timeout=LOST).stdout.decode("ascii", "replace")
        except EngineError:
            return  # it has just ended, or its engine does not answer: the next look says which
        self._note_disk(rank, text)
        kind, reason = link_trouble(text, interface, peers)
        if not kind:
            rank.doubt = None
        elif rank.doubt is None or rank.doubt[0] != kind:
            rank.doubt = (kind, reason, time.time())
            self.say(f"  {rank.here.node}: {reason}")
        elif time.time() - rank.doubt[2] > DOUBT and not any(
            time.time() - one.heard > LATE for one in self.ranks if one is not rank
        ):  # a machine that is switched off looks like this to the others; its engine will tell
            down = next((one for one in self.ranks if one.doubt and one.doubt[0] == "down"), rank)
            assert down.doubt is not None
            self.report(down, Failure(down.doubt[1], down.container))

    def _note_disk(self, rank: Rank, text: str) -> None:
        found = _FREE.search(text)
        free = int(found[1]) << 10 if found else nodes.DISK
        if free < nodes.DISK and not rank.is_full:
            look = f"docker --context {rank.here.profile.nodes[rank.here.node].context} system df"
            self.say(f"  {rank.here.node}: {size(free)} are free on Docker's disk: make room there, see `{look}`")
        rank.is_full = free < nodes.DISK

    def read(self, rank: Rank) -> tuple[str, ...]:
        """Read on in a rank's log: a fallback may happen on one machine alone. What it has not shown yet."""
        if rank.evidence is None:
            return ()
        node = rank.here.node
        with rank.reading:
            rank.reader = rank.reader or LogReader(rank.engine, rank.container.id, rank.container.started_at)
            try:
                lines = rank.reader.new_lines()
            except EngineError:
                return rank.evidence.missing  # its state says more
            for line in lines:
                rank.evidence.feed(line)
                rank.last = line
            if lines:
                rank.wrote = time.time()
            elif time.time() - rank.wrote > QUIET and rank is not self.ranks[-1]:  # the head's is shown anyway
                rank.wrote = time.time()
                self.say(f"  {node}: has written nothing for {QUIET:g} s; last: {log_text(rank.last)[:100]}")
        if rank.evidence.forbidden is not None:
            name, line = rank.evidence.forbidden
            what = "that NCCL uses TCP, not RDMA" if name in OVER_TCP else f"what ready.forbid.{name} names"
            reason = f"its log shows {what}: {log_text(line)[:200]!r}"
            self.report(rank, Failure(reason, rank.container, says_all=True))
        return rank.evidence.missing

    def report(self, rank: Rank, failure: Failure) -> None:
        """This one failed. Where another has ended before it, that one is the first."""
        with self._lock:
            if self.first.done() or self.over.is_set():
                return
            ended = [found for one in self.ranks if one is not rank and (found := self._ended(one))]
            mine = self._ended(rank) if ended else None
            _, first, why = min([(mine[0] if mine else "~", rank, failure), *ended], key=lambda one: one[0])
            self.culprit = first.here.node
            self.over.set()
            self.first.set_result((first, why))

    def _ended(self, rank: Rank) -> tuple[str, Rank, Failure] | None:
        """When and how a rank ended, by its engine's clock; None while it runs, or where that cannot be had."""

        def look() -> tuple[str, Rank, Failure] | None:
            container = rank.engine.container(rank.container.id)
            found = rank.engine.inspect(rank.container.id)
            if container is None or container.running or found is None:
                return None
            return str(found.get("State", {}).get("FinishedAt", "~")), rank, ending(container)

        answer = in_background(look)
        done = wait([answer], SETTLE).done
        return answer.result() if done and not isinstance(answer.exception(), EngineError) else None

    # --- the canary ---------------------------------------------------------------------------------------------------

    def sing(self, every: float, service: str) -> None:
        """Ask the head for a completion, ``every`` so many seconds (0: never), until all is over."""
        head = self.ranks[0]
        described = head.here.profile.services[service]
        ready = described.ready or Ready()
        if every and ready.model:
            question = Question(ready.model, ready.prompt, ready.expect_text, key_of(head.here.profile))
            in_background(lambda: self._guarded(lambda: self._sing(every, head, service, question)))
        elif every:
            self.say(f"  no canary request is sent: services.{service}.ready.model is not set")

    def _sing(self, every: float, head: Rank, service: str, question: Question) -> None:
        bad, timeout = 0, max(5.0, 2 * every)
        while not self.over.wait(AGAIN if bad else every):
            began = self._awake.since()
            try:
                url = reachable_url(head.here.profile.services[service], head.here.compose.endpoint)
            except EngineError:
                continue  # a machine that cannot be reached is noticed elsewhere
            before = tokens(url)
            answer = ask(url, question, timeout=timeout)
            if answer.ready or self._awake.since() != began:
                bad = 0
                continue
            if not (answer.fatal or answer.refused) and before is not None and before < (tokens(url) or before):
                self.say(f"  canary: no answer within {timeout:g} s, and the server works on others")
                continue
            bad += 1
            why = answer.why.replace("the first ", "the ", 1)
            self.say(f"  canary: {why} ({bad} of {FAILURES})")
            if bad >= FAILURES:
                reason = f"it failed {bad} small requests in a row: {why}"
                self.report(head, Failure(reason, head.container, says_all=answer.fatal))


class Awake:
    """Since when this process has run without a pause. A laptop that was closed has heard nothing meanwhile."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.time) -> None:
        self._say, self._clock = say, clock
        self._last = self._since = clock()
        self._lock = Lock()

    def since(self) -> float:
        """To be called every second or so; some time is granted after a pause, for connections to come back."""
        with self._lock:
            now = self._clock()
            if now - self._last > PAUSE:
                self._say(f"  envgen was stopped for {now - self._last:.0f} s (a closed lid?); looking again")
                self._since = now + GRACE
            self._last = now
            return self._since


def ending(container: Container | None) -> Failure:
    """How a container ended."""
    return Failure(f"its program {how_ended(container)}" if container else "its container was removed", container)


def link_trouble(text: str, interface: str, peers: Mapping[str, str]) -> tuple[str, str]:
    """What is wrong with a machine's cable: a word for the kind of trouble, and a sentence. "" where nothing is.

    ``text``: the interface's state, then the kernel's tables of TCP connections; ``peers``: the others' addresses.
    """
    state, *lines = text.splitlines() or [""]
    if state not in ("up", "unknown"):
        known = state if re.fullmatch("[a-z]+", state) else "gone"
        return "down", f"its interface {interface} is {known}: is the cable plugged in at both ends?"
    for address, port, kind, retries in (found.groups() for line in lines if (found := _CONNECTION.match(line))):
        number = ".".join(str(int(address[at : at + 2], 16)) for at in (6, 4, 2, 0))
        if number in peers and int(retries, 16) >= RETRIES:
            where = f"{peers[number]} ({number})"
            if kind == "02":
                cause = "all TCP ports must be open between these addresses"
                return "silent", f"{where} does not answer on TCP port {int(port, 16)}: {cause}"
            return "silent", f"{where} does not acknowledge what is sent to it: is the cable plugged in at both ends?"
    return "", ""
