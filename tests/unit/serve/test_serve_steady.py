"""What `up` sees after the answer, and where nothing can be asked."""

from __future__ import annotations

import itertools
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from envgen.engine.values import Container, ProcessState
from envgen.profile.service import Health, Ready, Service
from envgen.profile.values import PortMapping
from envgen.serve import follow, wait
from envgen.serve.ended import StartFailure
from envgen.serve.readiness import Question, Readiness
from envgen.serve.wait import Evidence, Waiter
from envgen.text import instant

RUNS = Container(
    id="1", name="lab-prod-web-1", service="web", state="running", health="", exit_code=0, image_id="", labels={},
    env={}, mounts=(), ports=(), started_at="2026-11-25T23:42:27Z", server=True,
)  # fmt: skip
NOW = float(instant(RUNS.started_at)) + 11
SERVER = Service(("web",), ports=(PortMapping(80, 80, "127.0.0.1"),), ready=Ready(port=80))


@pytest.fixture(autouse=True)
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What a wait has slept: nothing, since each look at the clock is a quarter of a second later."""
    now, naps = itertools.count(NOW, 0.25), list[float]()
    clock = SimpleNamespace(monotonic=lambda: next(now), time=lambda: NOW, sleep=naps.append)
    monkeypatch.setattr(wait, "time", clock)
    monkeypatch.setattr(follow, "time", clock)
    return naps


def done(answer: Readiness) -> Future[Readiness]:
    future = Future[Readiness]()
    future.set_result(answer)
    return future


class Answering(Waiter):
    """Waits for a server that answers; from then on its container is ``after``."""

    after = RUNS

    def _ask(self) -> Future[Readiness]:
        self._engine.container = lambda _id: self.after  # type: ignore[method-assign, assignment]
        return done(Readiness(True, text="Paris"))


def waiter(
    kind: type[Waiter], service: Service = SERVER, url: str = "http://127.0.0.1:80", runs: Container = RUNS
) -> Waiter:
    engine: Any = SimpleNamespace(container=lambda _id: runs, logs=lambda *_, **__: "", processes=lambda _id: [])
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
    assert waits.wait("1", NOW + 60).answer.text == "Paris"
    waits = waiter(Answering)
    waits.after = after  # type: ignore[attr-defined]
    with pytest.raises(StartFailure, match=why):
        waits.wait("1", NOW + 60)


ENTRY_POINT = ("/sbin/docker-init -- /opt/envgen/bin/entrypoint webb", "/bin/sh /opt/envgen/bin/entrypoint webb")
RECORD = ("/opt/envgen/bin/base-python -I /opt/envgen/libexec/record-env webb",)


@pytest.mark.parametrize("last", [replace(RUNS, state="exited", exit_code=127), RUNS], ids=["missing", "there"])
def test_a_program_runs_once_the_entry_point_is_through(last: Container) -> None:
    """On a busy machine the entry point alone takes longer than a program gets to fail at its start."""
    looks = [*[ENTRY_POINT] * 9, RECORD]
    waits = waiter(Waiter, Service(("webb",)), "")
    waits._engine.processes = lambda _id: [  # type: ignore[method-assign, assignment]
        ProcessState(1, 0, "S", 0, command) for command in (looks.pop(0) if looks else ())
    ]
    waits._engine.container = lambda _id: RUNS if looks else last  # type: ignore[method-assign, assignment]
    if last is RUNS:
        assert waits.wait("1", NOW + 60).answer.unasked
    else:
        with pytest.raises(StartFailure, match="code 127"):
            waits.wait("1", NOW + 60)


@pytest.mark.parametrize(
    ("already", "second", "slept"),
    [(True, 27, False), (True, 29, True), (False, 27, True)],
    ids=["long", "new", "ours"],
)
def test_what_has_run_for_long_had_its_time_to_fail(naps: list[float], already: bool, second: int, slept: bool) -> None:
    waits = waiter(Waiter, Service(("webb",)), "", replace(RUNS, started_at=f"2026-11-25T23:42:{second}Z"))
    assert waits.wait("1", NOW + 60, already=already).answer.unasked and bool(naps) is slept


@pytest.mark.parametrize(
    ("service", "url", "why"),
    [
        (Service(("web",)), "", "no port is known to answer HTTP (ready.port)"),
        (Service(("web",), health=Health("/health")), "", "port 8000 is not published"),
        (Service(("vllm", "serve", "/models/x")), "", "port 8000 is not published"),
    ],
)
def test_nothing_to_ask(service: Service, url: str, why: str) -> None:
    awaited = waiter(Waiter, service, url).wait("1", NOW + 60)
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


def test_one_that_runs_already_is_looked_at_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it has had its time to fail, for its answer, and once more after it."""
    now, looks = [NOW], list[float]()

    def sleep(seconds: float) -> None:
        now[0] += seconds

    clock = SimpleNamespace(monotonic=lambda: now[0], time=lambda: NOW - 9, sleep=sleep)
    monkeypatch.setattr(wait, "time", clock)
    monkeypatch.setattr(follow, "time", clock)

    def container(_id: str) -> Container:
        looks.append(now[0])
        return RUNS

    waits = waiter(Answering)
    waits._engine.container = container  # type: ignore[method-assign, assignment]
    monkeypatch.setattr(Answering, "_ask", lambda _self: done(Readiness(True, text="Paris")))
    assert waits.wait("1", NOW + 60, already=True).answer.text == "Paris"
    assert len(looks) == 3


def test_the_first_of_two_unwanted_patterns_is_named() -> None:
    evidence = Evidence({"up": "ready", "more": "x"}, {"a": "died", "b": "died"})
    for line in ("ready", "it died", "died again"):
        evidence.feed(line)
    assert evidence.forbidden == ("a", "it died") and evidence.missing == ("more",)
    evidence.restart()
    assert evidence.forbidden is None and evidence.missing == ("up", "more")


def test_a_wrong_answer_is_waited_for_twice() -> None:
    """The third one ends the wait. One that comes too early does not count."""
    answers = iter([Readiness(False, "busy"), *[Readiness(False, "broken", refused=True)] * 3])

    class Wrong(Waiter):
        def _ask(self) -> Future[Readiness]:
            return done(next(answers))

    with pytest.raises(StartFailure, match="broken"):
        waiter(Wrong).wait("1", NOW + 60)
    assert next(answers, None) is None


def test_a_model_that_pools_is_asked_for_no_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[Question]()

    def ask(_url: str, question: Question, **_: Any) -> Readiness:
        asked.append(question)
        return Readiness(True)

    monkeypatch.setattr(wait, "ask", ask)
    for argv, expected in ((("vllm",), ("Hi", "Paris")), (("vllm", "--runner", "pooling"), (None, None))):
        service = replace(SERVER, command=argv, ready=Ready(port=80, model="m", prompt="Hi", expect_text="Paris"))
        waiter(Waiter, service)._ask().result()
        assert (asked[-1].prompt, asked[-1].expect_text) == expected
