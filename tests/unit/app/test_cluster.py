"""A start on several machines of which one goes away, and what doctor says of their comparison."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envgen.app import doctor
from envgen.app.cluster import group as cluster
from envgen.app.cluster.group import Group
from envgen.deployment import Deployment
from envgen.doctor.model import Remedy, Severity, Subject
from envgen.doctor.nodes import completed, finding
from envgen.errors import EngineError
from envgen.profile.service import Cluster, Service

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


def begin(_group: Group, deployment: Deployment, _watch: object) -> Any:
    """Start a rank, unless its machine is off."""
    engine: Any = deployment.engine
    if engine.off:
        raise EngineError(GONE)
    engine.there.append("begun")
    return SimpleNamespace(container=SimpleNamespace(id="begun"), already=False)


def group(**engines: Engine) -> Group:
    services = {"serve": SimpleNamespace(ready=None)}
    profile: Any = SimpleNamespace(name="prod", chosen="--profile prod", compose_name="p-prod", services=services)
    nodes = {name.replace("_", "-"): engine for name, engine in engines.items()}
    return Group(
        tuple(Deployment(profile, Path(), node).with_cached(engine=one) for node, one in nodes.items()), "serve"
    )


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


def test_doctor_reports_the_machines_of_a_cluster_in_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    services = {
        "serve": Service(command=("vllm",), cluster=Cluster(nodes=("one", "two"))),
        "dev": Service(command=("bash",)),
    }
    profile: Any = SimpleNamespace(name="prod", chosen="--profile prod", services=services)
    answers = [
        finding(Severity.OK, ("one",), "Docker 29"),
        finding(Severity.WARNING, ("one", "two"), "slow", "is it the right interface?"),
        finding(Severity.ERROR, ("two",), "the image x is not there", fix="docker save x | docker --context two load"),
    ]
    monkeypatch.setattr(
        "envgen.app.cluster.nodes.check", lambda *_: [completed(one, profile, "serve") for one in answers]
    )
    ok, warning, error = doctor._machines(Subject(Deployment(profile, Path())))
    assert ok.title == "one: Docker 29" and ok.severity is Severity.OK
    assert warning.severity is Severity.WARNING and (warning.title, warning.seen) == ("one+two: slow", "service serve")
    assert warning.remedy == Remedy("envgen nodes check serve --profile prod")
    assert error.severity is Severity.ERROR and error.title == "two: the image x is not there"
    assert error.remedy == Remedy("docker save x | docker --context two load")
    assert doctor._machines(Subject(Deployment(profile, Path()), "dev")) == []
