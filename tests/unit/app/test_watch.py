"""What a watch of several machines makes of what it sees, and a start on several of which one goes away."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from envgen.app.cluster import group as cluster
from envgen.app.cluster import watch
from envgen.app.cluster.group import Group
from envgen.app.cluster.watch import Watch, WatchedRank
from envgen.deployment import Deployment
from envgen.deployment.service import LiveService
from envgen.doctor.model import Remedy, Severity
from envgen.doctor.nodes import completed, finding
from envgen.engine.values import Container
from envgen.errors import EngineError
from envgen.profile.model import Machine
from envgen.profile.service import Ready, Service
from envgen.serve.ended import StartFailure, ending
from envgen.serve.follow import Event, Follower, Kind


def container(name: str, state: str = "running", code: int = 0, finished: str = "") -> Container:
    return Container(name, name, "serve", state, "", code, "", {}, {}, (), (), "", finished_at=finished)


@dataclass
class StubEngine:
    """One container, or no answer."""

    found: Container
    lost: bool = False
    log: str = ""

    def logs(self, _container: str, **_: Any) -> str:
        return "".join(f"2026-11-22T11:00:{at:02}Z {line}\n" for at, line in enumerate(self.log.splitlines()))

    def container(self, _name: str) -> Container:
        if self.lost:
            raise EngineError("no route to host")
        return self.found


@dataclass
class Here:
    """A place, as far as a watch looks at it."""

    node: str
    profile: Any = field(default_factory=lambda: Profile())
    compose: Any = None
    engine: Any = None
    reconnected: Any = None


@dataclass
class Profile:
    services: Any = field(
        default_factory=lambda: {"serve": Service(command=("vllm",), ready=Ready(model="m", prompt="Hello"))}
    )
    nodes: Any = field(default_factory=lambda: {"a": Machine("10.0.0.1", "eth1"), "b": Machine("10.0.0.2", "eth1")})
    secrets: tuple[str, ...] = ()


@pytest.fixture
def idle() -> Watch:
    """A watch of two machines whose threads have not begun."""
    return Watch(list[str]().append)


def rank(node: str, engine: StubEngine, answered: float = 0.0) -> WatchedRank:
    follower = Follower(cast(Any, engine), engine.found.id)
    follower.answered = answered
    return WatchedRank(cast(Any, Here(node)), engine.found, follower)


def test_the_first_to_end_is_the_culprit_whoever_is_seen_first(idle: Watch) -> None:
    head = rank("a", StubEngine(container("a", "exited", 0, "2026-11-22T11:00:02.5Z")))
    worker = rank("b", StubEngine(container("b", "exited", 137, "2026-11-22T11:00:02.1Z")))
    idle.ranks += [worker, head]
    idle.report(head, ending(head.follower.engine.container("a")))
    first, failure = idle.first.result(0)
    assert (
        first is worker
        and failure.reason == "its process was killed (SIGKILL): it exited with code 137"
        and idle.culprit == "b"
    )


def test_a_rank_that_runs_or_cannot_be_asked_is_not_blamed(idle: Watch) -> None:
    head = rank("a", StubEngine(container("a", "exited", 1, "2026-11-22T11:00:02.5Z")))
    idle.ranks += [head, rank("b", StubEngine(container("b"))), rank("c", StubEngine(container("c"), lost=True))]
    idle.report(head, StartFailure("its process exited with code 1"))
    assert idle.first.result(0)[0] is head
    idle.report(idle.ranks[1], StartFailure("later"))  # a consequence
    assert idle.first.result(0)[0] is head


def test_a_silent_engine_is_lost_unless_none_answers(idle: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("envgen.app.cluster.watch.time.monotonic", lambda: now[0])
    one, two = rank("a", StubEngine(container("a")), 1000.0), rank("b", StubEngine(container("b")), 1000.0)
    idle.ranks += [one, two]
    now[0] += watch.LOST + 1
    lost = Event(Kind.LOST, seconds=watch.LOST + 1, error=EngineError("no route to host"))
    idle.take(two, lost)
    assert not idle.first.done()  # the other has not been heard either: it is this computer's network
    one.follower.answered = now[0]
    idle.take(two, lost)
    first, failure = idle.first.result(0)
    assert first is two and "has not answered for 10 s: no route to host" in failure.reason


def test_a_clock_that_is_set_loses_no_rank(idle: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = StubEngine(container("a"), lost=True)
    one = rank("a", engine, time.monotonic())
    idle.ranks += [one]
    monkeypatch.setattr("time.time", lambda: 1e12)
    event = next(one.follower.events())
    idle.take(one, event)
    assert event.kind is Kind.LOST and not idle.first.done()


def reading(idle: Watch, monkeypatch: pytest.MonkeyPatch, log: str, ready: Ready, *rdma: str) -> WatchedRank:
    monkeypatch.setattr(Watch, "_follow", lambda *_: None)
    deployment = Here("b", engine=StubEngine(container("b"), log=log))
    deployment.profile.nodes["b"] = Machine("10.0.0.2", "eth1", rdma=rdma)
    idle.add(deployment, container("b"), ready)  # type: ignore[arg-type]
    [found] = idle.ranks
    idle.ranks.append(rank("a", StubEngine(container("a"))))
    return found


TCP = "vm:53:53 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0"


@pytest.mark.parametrize(
    ("log", "rdma", "reason"),
    [
        (TCP, ("rocep1s0f1",), "shows that NCCL uses TCP, not RDMA: "),
        ("spark:1:1 [0] NCCL INFO NET/IB : No device found.", ("rocep1s0f1",), "shows that NCCL uses TCP, not RDMA: "),
        (TCP, (), ""),
        ("Using Marlin backend", (), "matches ready.forbid.marlin: 'Using Marlin backend'"),
    ],
)
def test_what_the_log_of_one_machine_must_not_show(
    idle: Watch, monkeypatch: pytest.MonkeyPatch, log: str, rdma: tuple[str, ...], reason: str
) -> None:
    ready = Ready(forbid={"marlin": "Using Marlin"})
    one = reading(idle, monkeypatch, f"starting\n{log}\n", ready, *rdma)
    idle.finish_reading()
    assert idle.first.done() == bool(reason)
    if reason:
        assert idle.first.result()[0] is one and f"its log {reason}" in idle.first.result()[1].reason


# A start on several machines of which one goes away


GONE = "ssh: connect to host spark-2 port 22: Connection timed out"


class Engine:
    """The containers of one machine; one that is ``off`` answers nothing."""

    def __init__(self, *containers: str, off: bool = False) -> None:
        self.off, self.there, self.asked = off, list(containers), 0

    def containers(self, *_: str, all: bool) -> list[Any]:
        self.asked += 1
        if self.off:
            raise EngineError(GONE)
        return [SimpleNamespace(id=one) for one in self.there]

    def stop_and_remove(self, container_id: str) -> bool:
        self.there.remove(container_id)
        return True


def begin(_group: Group, rank: LiveService, _watch: object) -> Any:
    """Start a rank, unless its machine is off."""
    engine: Any = rank.engine
    if engine.off:
        raise EngineError(GONE)
    engine.there.append("begun")
    return SimpleNamespace(container=SimpleNamespace(id="begun"), already=False)


def group(**engines: Engine) -> Group:
    services = {"serve": SimpleNamespace(ready=None)}
    profile: Any = SimpleNamespace(name="prod", chosen="--profile prod", compose_name="p-prod", services=services)
    ranks = []
    for name, engine in engines.items():
        deployment = Deployment(profile, Path(), name.replace("_", "-")).with_cached(engine=engine)
        ranks.append(LiveService(deployment, "serve"))
    return Group(tuple(ranks))


def test_a_container_that_has_replaced_one_stays() -> None:
    """It may be of another `envgen up`, or of the owner's own `docker compose`."""
    head, worker = Engine("mine"), Engine("successor")
    assert group(spark_1=head, spark_2=worker).take_down({"spark-1": "mine", "spark-2": "gone"}) == []
    assert (head.there, worker.there) == ([], ["successor"])
    assert group(spark_1=head, spark_2=worker).take_down() == []
    assert worker.there == []


@pytest.mark.parametrize("off", ["spark-1", "spark-2"])
def test_a_machine_that_is_switched_off_between_check_and_start(off: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = group(spark_1=Engine(off=off == "spark-1"), spark_2=Engine(off=off == "spark-2"))
    monkeypatch.setattr(Group, "_begin", begin)
    monkeypatch.setattr(cluster, "Watch", lambda *_: SimpleNamespace(over=SimpleNamespace(set=lambda: None), add=added))
    seen = list[str]()

    def added(deployment: Deployment, *_: Any) -> None:
        seen.append(deployment.node)

    with pytest.raises(EngineError) as raised:
        begun.start(wait_for_it=True, timeout=None)
    first, left = raised.value.problems
    assert first.message == f"{off}: {GONE}"
    assert left.message.startswith(f"{off} could not be cleaned up ({GONE}); when it answers again: envgen down")
    assert "docker ps -aq --filter label=com.docker.compose.project=p-prod | xargs -r docker rm -f" in left.message
    # The worker comes first. A head that was never begun is left alone.
    assert [one.engine.asked for one in begun.ranks] == ([1, 1] if off == "spark-1" else [0, 1])  # type: ignore[attr-defined]
    assert [one.engine.there for one in begun.ranks] == [[], []]  # type: ignore[attr-defined]
    assert seen == ([] if off == "spark-2" else ["spark-2"])


def test_a_finding_about_machines_has_a_command() -> None:
    profile: Any = SimpleNamespace(name="prod", chosen="--profile prod")
    answers = [
        finding(Severity.OK, ("one",), "Docker 29"),
        finding(Severity.WARNING, ("one", "two"), "slow", "is it the right interface?"),
        finding(Severity.ERROR, ("two",), "the image x is not there", fix="docker save x | docker --context two load"),
    ]
    ok, warning, error = [completed(one, profile, "serve") for one in answers]
    assert ok.title == "one: Docker 29" and ok.severity is Severity.OK
    assert warning.severity is Severity.WARNING and warning.title == "one+two: slow"
    assert warning.remedy == Remedy("envgen nodes check serve --profile prod")
    assert error.severity is Severity.ERROR and error.title == "two: the image x is not there"
    assert error.remedy == Remedy("docker save x | docker --context two load")
