"""What a watch of several machines makes of what it sees: tables of connections, clocks, and engines made up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from envgen.app import watch
from envgen.app.watch import Awake, Rank, Watch, link_trouble
from envgen.engine.values import Container, ExecResult
from envgen.errors import EngineError
from envgen.profile.model import Machine, Ready, Service
from envgen.serve.readiness import Answer
from envgen.serve.wait import Failure

PEERS = {"192.168.177.31": "spark-1"}
HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
# As the kernel writes them: a connection that nothing answers after three tries, and one that is served.
SYN = "   3: 20B1A8C0:D2F4 1FB1A8C0:7451 02 00000001:00000000 01:00000196 00000003     0   0 411 2 0 800 0 0 1 7\n"
GOOD = "   4: 20B1A8C0:D2F4 1FB1A8C0:733D 01 00000000:00000000 00:00000000 00000000     0   0 412 1 0 20 4 0 1 -1\n"
LATE = GOOD.replace("01 00000000:00000000 00:00000000 00000000", "01 00000A00:00000000 01:00000196 00000005")
MAPPED = SYN.replace("1FB1A8C0:", "0000000000000000FFFF00001FB1A8C0:").replace(
    "20B1A8C0:", "0000000000000000FFFF000020B1A8C0:"
)


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("up\n" + HEAD + GOOD, "", ""),
        ("unknown\n" + HEAD, "", ""),
        ("up\n" + HEAD + GOOD + SYN, "silent", "spark-1 (192.168.177.31) does not answer on TCP port 29777: all TCP"),
        ("up\n" + HEAD + MAPPED, "silent", "spark-1 (192.168.177.31) does not answer on TCP port 29777"),
        ("up\n" + HEAD + SYN.replace("00000003", "00000002"), "", ""),
        ("up\n" + HEAD + SYN.replace("1FB1A8C0", "0100007F"), "", ""),  # not another machine of the cluster
        ("up\n" + HEAD + LATE, "silent", "spark-1 (192.168.177.31) does not acknowledge what is sent to it"),
        ("down\n" + HEAD + SYN, "down", "its interface eth1 is down: is the cable plugged in"),
        ("lowerlayerdown\n", "down", "eth1 is lowerlayerdown"),
        (HEAD + GOOD, "down", "eth1 is gone"),
        ("", "down", "eth1 is gone"),
        ("up\nx: y 02\n\x00", "", ""),
    ],
)
def test_what_the_kernel_knows_of_a_cable(text: str, kind: str, words: str) -> None:
    found = link_trouble(text, "eth1", PEERS)
    assert found[0] == kind and words in found[1]


def test_a_pause_of_this_process_is_noticed_and_grants_time() -> None:
    now, said = [100.0], list[str]()
    awake = Awake(said.append, lambda: now[0])
    for _ in range(5):
        now[0] += 1
        assert awake.since() == 100.0
    now[0] += 3600
    assert awake.since() == now[0] + watch.GRACE
    assert said == ["  envgen was stopped for 3600 s (a closed lid?); looking again"]


def container(name: str, state: str = "running", code: int = 0) -> Container:
    return Container(name, name, "serve", state, "", code, "", {}, {}, (), (), "")


@dataclass
class StubEngine:
    """One container, which ended at ``finished`` where it has; or no answer."""

    found: Container
    finished: str = ""
    lost: bool = False
    shown: str = ""  # by `cat` and `df`
    log: str = ""

    def exec(self, _container: str, _argv: list[str], *, timeout: float) -> ExecResult:
        return ExecResult(0, self.shown.encode(), b"")

    def logs(self, _container: str, **_: Any) -> str:
        return "".join(f"2026-11-22T11:00:{at:02}Z {line}\n" for at, line in enumerate(self.log.splitlines()))

    def container(self, _name: str) -> Container:
        if self.lost:
            raise EngineError("no route to host")
        return self.found

    def inspect(self, _name: str) -> Mapping[str, Any]:
        return {"State": {"FinishedAt": self.finished}}


@dataclass
class Here:
    """A place, as far as a watch looks at it."""

    node: str
    profile: Any = field(default_factory=lambda: Profile())
    compose: Any = None
    engine: Any = None


@dataclass
class Profile:
    services: Any = field(
        default_factory=lambda: {"serve": Service(command=("vllm",), ready=Ready(model="m", prompt="Hello"))}
    )
    nodes: Any = field(default_factory=lambda: {"a": Machine("10.0.0.1", "eth1"), "b": Machine("10.0.0.2", "eth1")})
    secrets: tuple[str, ...] = ()


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """A watch of two machines whose threads have not begun."""
    monkeypatch.setattr(Watch, "_tick", lambda _self: None)
    return Watch(list[str]().append)


def rank(node: str, engine: StubEngine, heard: float = 0.0) -> Rank:
    return Rank(Here(node), engine.found, engine, heard)  # type: ignore[arg-type]


def test_the_first_to_end_is_the_culprit_whoever_is_seen_first(idle: Watch) -> None:
    head = rank("a", StubEngine(container("a", "exited", 0), "2026-11-22T11:00:02.5Z"))
    worker = rank("b", StubEngine(container("b", "exited", 137), "2026-11-22T11:00:02.1Z"))
    idle.ranks += [worker, head]
    idle.report(head, watch.ending(head.engine.container("a")))
    first, failure = idle.first.result(0)
    assert first is worker and failure.reason == "its program ended with 137" and idle.culprit == "b"


def test_a_rank_that_runs_or_cannot_be_asked_is_not_blamed(idle: Watch) -> None:
    head = rank("a", StubEngine(container("a", "exited", 1), "2026-11-22T11:00:02.5Z"))
    idle.ranks += [head, rank("b", StubEngine(container("b"))), rank("c", StubEngine(container("c"), lost=True))]
    idle.report(head, Failure("its program ended with 1"))
    assert idle.first.result(0)[0] is head
    idle.report(idle.ranks[1], Failure("later"))  # a consequence
    assert idle.first.result(0)[0] is head


def test_a_silent_engine_is_lost_unless_none_answers(idle: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("envgen.app.watch.time.time", lambda: now[0])
    monkeypatch.setattr(watch, "connect", lambda _environ: StubEngine(container("b")))
    idle._awake = Awake(idle.say, lambda: 0.0)
    one, two = rank("a", StubEngine(container("a")), 1000.0), rank("b", StubEngine(container("b")), 1000.0)
    idle.ranks += [one, two]
    now[0] += watch.LOST + 1
    idle._silent(two, EngineError("no route to host"))
    assert not idle.first.done()  # the other has not been heard either: it is this computer's network
    one.heard = now[0]
    idle._silent(two, EngineError("no route to host"))
    first, failure = idle.first.result(0)
    assert first is two and "has not answered for 10 s: no route to host" in failure.reason


@pytest.mark.parametrize(
    ("answers", "counts", "reason"),
    [
        ([Answer(False, "the first prompt was not answered (time-out)")] * 2, [None] * 4, "not answered (time-out)"),
        ([Answer(False, "NaN", fatal=True), Answer(True), *[Answer(False, "NaN", fatal=True)] * 2], [1.0] * 9, "NaN"),
        # A server that is busy with others is slow, and does not hang.
        ([Answer(False, "time-out"), *[Answer(False, "gone", refused=True)] * 2], [1.0, 2.0, *[2.0] * 4], "gone"),
    ],
)
def test_requests_that_fail_in_a_row_are_the_end(
    idle: Watch, monkeypatch: pytest.MonkeyPatch, answers: list[Answer], counts: list[float | None], reason: str
) -> None:
    monkeypatch.setattr(watch, "AGAIN", 0)
    monkeypatch.setattr(watch, "reachable_url", lambda *_: "http://a:8000")
    monkeypatch.setattr(watch, "ask", lambda *_, **__: answers.pop(0))
    monkeypatch.setattr(watch, "tokens", lambda _url: counts.pop(0))
    head = rank("a", StubEngine(container("a")))
    head.here.compose = type("Compose", (), {"endpoint": None})()  # type: ignore[misc]
    idle.ranks += [head, rank("b", StubEngine(container("b")))]
    idle._sing(0.001, head, "serve", None)  # type: ignore[arg-type]
    first, failure = idle.first.result(0)
    assert first is head and failure.reason.startswith("it failed 2 small requests in a row: ")
    assert reason in failure.reason and not answers


DF = "Filesystem     1024-blocks      Used Available Capacity Mounted on\noverlay    103080204 102450000    {} 100% /\n"


def test_a_disk_that_fills_is_told_once(idle: Watch) -> None:
    said = list[str]()
    idle.say = said.append
    one = rank("b", StubEngine(container("b"), shown="up\n" + HEAD + GOOD + DF.format(630204)))
    idle.ranks += [rank("a", StubEngine(container("a"))), one]
    for _ in range(2):
        idle._look_at_links(one)
    assert said == [
        "  b: 615.4MiB are free on Docker's disk: make room there, see `docker --context default system df`"
    ]
    for free in (5 << 20, 1000):  # room was made, and it fills again
        one.engine.shown = "up\n" + DF.format(free)  # type: ignore[attr-defined]
        idle._look_at_links(one)
    assert len(said) == 2 and not idle.first.done()


def test_a_machine_that_is_switched_off_is_the_culprit_and_not_the_other_end_of_its_cable(
    idle: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("envgen.app.watch.time.time", lambda: now[0])
    monkeypatch.setattr(watch, "connect", lambda _environ: StubEngine(container("b")))
    idle._awake = Awake(idle.say, lambda: 0.0)
    one, two = (rank(name, StubEngine(container(name), shown="lowerlayerdown\n"), 1000.0) for name in "ab")
    idle.ranks += [one, two]
    for _ in range(12):
        now[0] += 1
        one.heard = now[0]
        idle._look_at_links(one)
    assert not idle.first.done()
    idle._silent(two, EngineError("ssh: connect to host b port 22: No route to host"))
    first, failure = idle.first.result(0)
    assert first is two and failure.reason.endswith(
        "No route to host; nothing answers on the cable either: is the machine switched off?"
    )


def reading(idle: Watch, monkeypatch: pytest.MonkeyPatch, log: str, ready: Ready, *rdma: str) -> Rank:
    monkeypatch.setattr(Watch, "_follow", lambda *_: None)
    here = Here("b", engine=StubEngine(container("b"), log=log))
    here.profile.nodes["b"] = Machine("10.0.0.2", "eth1", rdma=rdma)
    idle.add(here, container("b"), ready)  # type: ignore[arg-type]
    [found] = idle.ranks
    idle.ranks.append(rank("a", StubEngine(container("a"))))
    return found


TCP = "vm:53:53 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0"


@pytest.mark.parametrize(
    ("log", "rdma", "said"),
    [
        (TCP, ("rocep1s0f1",), "that NCCL uses TCP, not RDMA: "),
        ("spark:1:1 [0] NCCL INFO NET/IB : No device found.", ("rocep1s0f1",), "that NCCL uses TCP, not RDMA: "),
        (TCP, (), ""),
        ("Using Marlin backend", (), "what ready.forbid.marlin names: 'Using Marlin backend'"),
    ],
)
def test_what_the_log_of_one_machine_must_not_show(
    idle: Watch, monkeypatch: pytest.MonkeyPatch, log: str, rdma: tuple[str, ...], said: str
) -> None:
    ready = Ready(expect={"moe": "Using CUTLASS"}, forbid={"marlin": "Using Marlin"})
    one = reading(idle, monkeypatch, f"starting\n{log}\n", ready, *rdma)
    assert idle.read(one) == ("moe",)
    assert idle.first.done() == bool(said)
    if said:
        assert idle.first.result()[0] is one and f"its log shows {said}" in idle.first.result()[1].reason


def test_a_worker_that_writes_nothing_is_told_with_its_last_line(idle: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[str]()
    idle.say = said.append
    one = reading(idle, monkeypatch, "world_size=2 rank=1 backend=gloo\n", Ready())
    for ago in (0, 60, 121, 60):
        one.wrote -= ago
        assert idle.read(one) == ()
    assert said == ["  b: has written nothing for 120 s; last: world_size=2 rank=1 backend=gloo"]
