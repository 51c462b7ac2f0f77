"""A port that is taken: who has it, and a free one on the same address, before the start and after."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envgen.engine import host
from envgen.engine.host import Listener
from envgen.engine.values import Port
from envgen.profile.model import Base, Cuda, Mode, Profile, Service
from envgen.profile.values import CudaArchList, ImageRef, PortMapping
from envgen.render.compose import compose_files
from envgen.render.environment import port_environment
from envgen.serve import preflight
from envgen.serve.launch import service_url
from envgen.serve.preflight import with_ports

# As Docker 28 and 29, Docker 20 to 27, and Compose in front of them word it.
LINES = (
    "Error response from daemon: failed to set up container networking: driver failed programming external "
    "connectivity on endpoint lab-dev-web-1 (0a1b): failed to bind host port 127.0.0.1:18001/tcp: address already in "
    "use",
    "Error response from daemon: driver failed programming external connectivity on endpoint lab-dev-web-1 (0a1b): "
    "Bind for 127.0.0.1:18001 failed: port is already allocated",
    "failed to bind host port for 127.0.0.1:18001:172.18.0.2:8000/tcp: address already in use",
)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An engine and a profile whose `web` publishes 18001; 18001 and 18002 are in use."""
    listeners = tuple(Listener("127.0.0.1", number, "1") for number in (18001, 18002))
    monkeypatch.setattr(host, "listening", lambda: listeners)
    monkeypatch.setattr(host, "owner", lambda one: f"process {one.port}")
    service = Service(
        command=("web",), ports=tuple(PortMapping.parse(text) for text in ("9000:9", "127.0.0.1:18001:8000", "18003:1"))
    )
    engine = SimpleNamespace(info=lambda: SimpleNamespace(local=True), containers=lambda: ())
    return SimpleNamespace(engine=engine, profile=SimpleNamespace(services={"web": service}), service=service)


HINT = "stop it, or take a free one: --set \"services.web.ports=['9000:9', '127.0.0.1:auto:8000', '18003:1']\""


def test_the_check_offers_a_free_port_on_the_same_address(found: Any) -> None:
    (problem,) = preflight._ports(found.engine, found.profile, "web", ())
    assert (problem.message, problem.hint) == ("port 18001 is taken by process 18001", HINT)


@pytest.mark.parametrize("line", LINES)
def test_what_compose_says_becomes_the_same_sentence(found: Any, line: str) -> None:
    refused = preflight.changed_meanwhile(found.engine, found.profile, Path(), "web", ["Container x Created", line])
    assert refused is not None and refused.exit_code == 6
    (problem,) = refused.problems
    assert problem.message == "web was not started: port 18001 was taken by process 18001 in the meantime"
    assert problem.hint == HINT


def test_other_failures_are_left_to_compose(found: Any) -> None:
    lines = ["exec: vllm: not found", "Bind for 127.0.0.1:5 failed: port is already allocated", "port 18001 is fine"]
    assert preflight.changed_meanwhile(found.engine, found.profile, Path(), "web", lines) is None


def project(**ports: tuple[str, ...]) -> Any:
    """A profile whose services have these ports."""
    services = {
        name: Service(command=("x",), ports=tuple(map(PortMapping.parse, texts))) for name, texts in ports.items()
    }
    base, cuda = Base(ImageRef.parse("b:1")), Cuda(arch_list=CudaArchList.parse("12.1a"))
    return Profile("dev", "p", Mode.DEVELOPMENT, base, cuda, services=services)


def runs(service: str, *published: Port) -> Any:
    return SimpleNamespace(service=service, name=f"p-dev-{service}-1", ports=published)


def hosts(profile: Profile) -> list[int]:
    return [port.host for service in profile.services.values() for port in service.ports]


def test_a_port_that_is_left_open_gets_the_next_free_number() -> None:
    open_ = project(a=("127.0.0.1:auto:8000", "8001:1"), b=("auto:8000",))
    assert hosts(open_) == [8000, 8001, 8000]
    free = with_ports(open_, (), lambda port: port.host not in (8000, 8002))
    assert hosts(free) == [8003, 8001, 8004]
    assert str(free.services["a"].ports[0]) == "127.0.0.1:auto:8000"
    assert service_url(free.services["a"], "unix:///x") == "http://127.0.0.1:8003"
    assert port_environment(free) == {"ENVGEN_PORT_A_8000": "8003", "ENVGEN_PORT_B_8000": "8004"}


def test_a_service_that_runs_keeps_its_port() -> None:
    containers = [runs("b", Port(8000, 8000)), runs("a")]
    found = with_ports(project(a=("auto:8000",), b=("auto:8000",)), containers, lambda port: port.host != 8000)
    assert hosts(found) == [8001, 8000]


def test_no_file_carries_the_number_that_is_free_here() -> None:
    open_ = project(a=("127.0.0.1:auto:8000",))
    files = compose_files(open_)
    assert '"127.0.0.1:${ENVGEN_PORT_A_8000:-8000}:8000"' in files["compose/dev.yaml"]
    assert compose_files(with_ports(open_, (), lambda port: port.host > 9000)) == files


def test_an_open_port_is_not_in_the_way_of_a_start(found: Any) -> None:
    service = Service(command=("web",), ports=(PortMapping.parse("127.0.0.1:auto:18001"),))
    profile = replace(project(), services={"web": service})
    engine: Any = SimpleNamespace(info=found.engine.info, containers=lambda *_: ())
    settled = preflight.settled(engine, profile)
    assert hosts(settled) == [18003]
    assert not list(preflight._ports(engine, settled, "web", ()))
    refused = preflight.changed_meanwhile(found.engine, profile, Path(), "web", [LINES[0]])
    assert refused is not None and "127.0.0.1:auto:18001" in refused.problems[0].hint
