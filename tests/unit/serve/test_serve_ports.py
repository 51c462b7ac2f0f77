"""A port that is taken: who has it, and a free one on the same address, before the start and after."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envgen.deployment import Deployment
from envgen.engine import host
from envgen.profile.service import Service
from envgen.profile.values import PortMapping
from envgen.serve import preflight

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
    taken = {("127.0.0.1", 18001), ("127.0.0.1", 18002)}
    monkeypatch.setattr(host, "is_taken", lambda port, address: (address, port) in taken)
    service = Service(
        command=("web",), ports=tuple(PortMapping.parse(text) for text in ("9000:9", "127.0.0.1:18001:8000", "18003:1"))
    )
    engine = SimpleNamespace(info=lambda: SimpleNamespace(local=True), containers=lambda: ())
    return SimpleNamespace(
        engine=engine, profile=SimpleNamespace(services={"web": service}, compose=None), service=service
    )


def on(found: Any) -> Deployment:
    return Deployment(found.profile, Path()).with_cached(engine=found.engine)


OTHER = "another program (`sudo ss -ltnp sport = :18001` shows it)"
HINT = "stop it, or take a free one: --set \"services.web.ports=['9000:9', '127.0.0.1:18004:8000', '18003:1']\""


def test_the_check_offers_a_free_port_on_the_same_address(found: Any) -> None:
    (problem,) = preflight.ports(on(found), "web", ())
    assert (problem.message, problem.hint) == (f"port 18001 is taken by {OTHER}", HINT)


@pytest.mark.parametrize("line", LINES)
def test_what_compose_says_becomes_the_same_sentence(found: Any, line: str) -> None:
    refused = preflight.changed_meanwhile(
        Deployment(found.profile, Path()).with_cached(engine=found.engine), "web", ["Container x Created", line]
    )
    assert refused is not None and refused.exit_code == 6
    (problem,) = refused.problems
    assert problem.message == f"web was not started: port 18001 was taken by {OTHER} in the meantime"
    assert problem.hint == HINT


def test_other_failures_are_left_to_compose(found: Any) -> None:
    lines = ["exec: vllm: not found", "Bind for 127.0.0.1:5 failed: port is already allocated", "port 18001 is fine"]
    assert preflight.changed_meanwhile(on(found), "web", lines) is None
