"""What `up` sees after the answer, and where nothing can be asked."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from envgen.engine.values import Container
from envgen.profile.service import Health, Ready, Service
from envgen.profile.values import PortMapping
from envgen.serve.ended import StartFailure
from envgen.serve.readiness import Readiness
from envgen.serve.wait import Waiter

RUNS = Container(
    id="1", name="lab-prod-web-1", service="web", state="running", health="", exit_code=0, image_id="", labels={},
    env={}, mounts=(), ports=(), started_at="2026-11-25T23:42:27Z", server=True,
)  # fmt: skip
SERVER = Service(("web",), ports=(PortMapping(80, 80, "127.0.0.1"),), ready=Ready(port=80))


class Answering(Waiter):
    """Waits for a server that answers; from then on its container is ``after``."""

    after = RUNS

    def _ask(self) -> Future[Readiness]:
        done = Future[Readiness]()
        done.set_result(Readiness(True, text="Paris"))
        return done

    def _with_evidence(self, *args: Any) -> Any:
        self._engine.container = lambda _id: self.after  # type: ignore[method-assign, assignment]
        return super()._with_evidence(*args)


def waiter(kind: type[Waiter], service: Service = SERVER, url: str = "http://127.0.0.1:80") -> Waiter:
    engine: Any = SimpleNamespace(container=lambda _id: RUNS, logs=lambda *_, **__: "")
    return kind(engine, "web", service, url, lambda _line: None)


@pytest.mark.parametrize(
    ("after", "why"),
    [
        (replace(RUNS, state="exited", exit_code=9), "its process exited with code 9 after its answer"),
        (replace(RUNS, state="restarting", exit_code=9, restarts=1), "exited after its answer, last with 9"),
        (replace(RUNS, restarts=1), "its process exited after its answer"),
        (replace(RUNS, state="paused"), "it is paused"),
    ],
    ids=["ended", "is restarted", "was restarted", "paused"],
)
def test_a_server_that_ends_after_its_answer_is_not_ready(after: Container, why: str) -> None:
    waits = waiter(Answering)
    assert waits.wait("1", time.monotonic() + 60).answer.text == "Paris"
    waits = waiter(Answering)
    waits.after = after  # type: ignore[attr-defined]
    with pytest.raises(StartFailure, match=why):
        waits.wait("1", time.monotonic() + 60)


@pytest.mark.parametrize(
    ("service", "url", "why"),
    [
        (Service(("web",)), "", "no port is known to answer HTTP (ready.port)"),
        (Service(("web",), ready=Ready()), "", "no port is known to answer HTTP (ready.port)"),
        (Service(("web",), health=Health("/health")), "", "port 8000 is not published"),
        (Service(("vllm", "serve", "/models/x")), "", "port 8000 is not published"),
    ],
)
def test_nothing_to_ask(service: Service, url: str, why: str) -> None:
    awaited = waiter(Waiter, service, url).wait("1", time.monotonic() + 60)
    assert awaited.answer == Readiness(True, unasked=why) and "answer" not in awaited.phases


@pytest.mark.parametrize(
    ("service", "port"),
    [
        (Service(("web",)), None),
        (Service(("web",), {"port": "9"}), None),  # of what protocol?
        (Service(("web",), ready=Ready(port=9)), 9),
        (Service(("web",), health=Health("/")), 8000),
        (Service(("web",), {"port": "9"}, health=Health("/")), 9),
        (Service(("vllm", "serve", "/models/x")), 8000),
        (Service(("vllm", "serve", "/models/x"), {"port": "9"}), 9),
        (Service(("python3", "-m", "vllm.entrypoints.openai.api_server", "--port=9")), 9),
    ],
)
def test_the_port_that_answers_http(service: Service, port: int | None) -> None:
    assert service.http_port == port
