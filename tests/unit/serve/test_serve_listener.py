"""On the host's network, an answer counts only if the container's own program listens."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from envgen.profile.service import Cluster, Health, Ready, Service
from envgen.profile.values import PortMapping
from envgen.serve import listener
from envgen.serve.ended import StartFailure
from envgen.serve.listener import Sockets, judge, port_on_host
from envgen.serve.wait import Waiter

# Rows of /proc/net/tcp and tcp6: 127.0.0.1:18099 (inode 11), [::]:18099 (inode 12), 127.0.0.1:18100 (inode 13).
LOOPBACK = "   0: 0100007F:46B3 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11 1 0 100 0"
EVERY = "   1: 00000000000000000000000000000000:46B3 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 12 1 0"
OTHER = LOOPBACK.replace("46B3", "46B4").replace(" 11 ", " 13 ")


@pytest.mark.parametrize(
    ("found", "is_stranger"),
    [
        (Sockets((LOOPBACK, OTHER), ("11", "13")), False),
        (Sockets((LOOPBACK, OTHER), ("13",)), True),
        (Sockets((LOOPBACK,), ()), True),
        (Sockets((EVERY,), ()), True),
        (Sockets((EVERY,), ("12",)), False),
        (Sockets((LOOPBACK, EVERY), ("12",)), False),
        (Sockets((LOOPBACK,), (), hidden=1), False),  # one of another user may have it
        (Sockets((OTHER,), ()), False),  # it has just ended
        (Sockets(("rubbish", ""), ()), False),
    ],
)
def test_who_listens(found: Sockets, is_stranger: bool) -> None:
    words = judge(found, 18099)
    expected = "port 18099 answers, but a program outside of the container listens there, not the container"
    assert words == (expected if is_stranger else "")


@pytest.mark.parametrize(
    ("service", "port"),
    [
        (Service(("x",), network="host", ready=Ready(port=1)), 1),
        (Service(("x",), network="host", health=Health("/health")), 8000),
        (Service(("x",), network="host"), None),
        (Service(("x",), ports=(PortMapping(1, 1),), ready=Ready(port=1)), None),  # Docker forwards no other's
        (Service(("x",), cluster=Cluster(("a", "b")), ready=Ready(port=1)), 1),
    ],
)
def test_whose_port_is_the_machines(service: Service, port: int | None) -> None:
    assert port_on_host(service) == port


def test_it_waits_until_its_own_program_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    container: Any = SimpleNamespace(
        id="1", state="running", health="", restarts=0, started_at="", running=True, error="", oom_killed=False
    )
    engine: Any = SimpleNamespace(container=lambda _id: container, logs=lambda *_, **__: "")
    waiter = Waiter(engine, "web", Service(("web",), network="host", ready=Ready(port=1)), "", lambda _line: None)
    found = iter(["port 1 answers, but process 7 (other) listens there, not the container", ""])
    asked: list[int] = []

    def stranger(_engine: Any, _container: Any, _python: str, port: int) -> str:
        asked.append(port)
        return next(found)

    monkeypatch.setattr(listener, "stranger", stranger)
    assert waiter.wait("1", time.monotonic() + 60).answer.ready
    assert asked == [1, 1]
    monkeypatch.setattr(listener, "stranger", lambda *_: "process 7 listens")
    with pytest.raises(StartFailure) as raised:
        waiter.wait("1", time.monotonic() + 2)
    assert raised.value.reason.endswith(": process 7 listens")
