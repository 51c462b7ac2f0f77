"""How long a sick engine is waited for."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
import requests

from envgen.engine import api
from envgen.engine import pulse as pulse_file
from envgen.engine.api import PATIENT, QUESTION, START
from envgen.engine.endpoint import Endpoint
from envgen.engine.pulse import Pulse
from envgen.engine.sdk import EngineSession
from envgen.errors import EngineError, EngineTimeout


class Clock:
    """Time that passes only where an engine is waited for; ``answer_after`` is how long it takes."""

    def __init__(self) -> None:
        self.now = 0.0
        self.answer_after = 0.0

    def within(self, seconds: float, ask: Callable[[], object]) -> object:
        self.now += min(seconds, self.answer_after)
        if self.answer_after >= seconds:
            raise TimeoutError
        return ask()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(api, "within", found.within)
    monkeypatch.setattr("envgen.engine.sdk.time.monotonic", lambda: found.now)

    def send(*_: object, **__: object) -> requests.Response:
        answer = requests.Response()
        answer.status_code, answer.raw = 200, io.BytesIO(b"[]")
        return answer

    monkeypatch.setattr("docker.APIClient.send", send)
    return found


def client(host: str = "unix:///a.sock") -> EngineSession:
    return EngineSession(Endpoint(host, "the default"), "1.43")


def ask(client: EngineSession, seconds: float = QUESTION) -> None:
    client.get("http+docker://localhost/x", timeout=seconds)


@pytest.mark.parametrize("answer_after", [0.3, 1.0, 4.9, 1e9])
def test_a_command_in_a_hurry_ends_however_the_engine_trickles(clock: Clock, answer_after: float) -> None:
    """Slow answers add up too: a hundred of 0.3 seconds each would take half a minute."""
    clock.answer_after = answer_after
    with api.time_budget(7.0):
        for number in range(100):
            with contextlib.suppress(EngineTimeout):
                ask(client(), seconds=(5, QUESTION, START)[number % 3])
        assert clock.now == pytest.approx(7.0)
        with pytest.raises(EngineTimeout, match="within 7 s"):
            ask(client())
        assert clock.now == pytest.approx(7.0), "nothing is asked any more"
        with pytest.raises(EngineTimeout) if answer_after > QUESTION else contextlib.nullcontext():
            ask(client("unix:///other.sock"))
        assert clock.now > 7.0, "one sick engine says nothing about another"


def test_a_hurry_ends_with_its_block(clock: Clock) -> None:
    clock.answer_after = 1e9
    with api.time_budget(7.0), api.time_budget(2.0), pytest.raises(EngineTimeout, match="within 2 s"):
        ask(client())
    clock.answer_after = 5.0
    ask(client())


@pytest.mark.parametrize(("wanted", "took"), [(0.5, 0.5), (PATIENT, QUESTION), (START, START), (300, 300)])
def test_work_is_not_a_question(clock: Clock, wanted: float, took: float) -> None:
    clock.answer_after = 1e9
    with pytest.raises(EngineTimeout):
        ask(client(), wanted)
    assert clock.now == took


# While another program works with an engine, envgen watches whether it still answers


ENDPOINT: Any = Endpoint("unix:///x", "the default")


@pytest.fixture
def moving_clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def run_for(pulse: Pulse, moving_clock: list[float], seconds: float) -> None:
    until = moving_clock[0] + seconds
    while moving_clock[0] < until:
        moving_clock[0] += 0.5
        pulse()


def answering(monkeypatch: pytest.MonkeyPatch, *answers: bool | None) -> list[float]:
    """Each question is answered, refused (False), or stays open (None); the last one for ever."""
    left, asked = list(answers), list[float]()

    def ask(_work: Any) -> Future[None]:
        asked.append(time.monotonic())
        answer, future = left.pop(0) if len(left) > 1 else left[0], Future[None]()
        if answer is not None:
            future.set_result(None) if answer else future.set_exception(EngineError("refused"))
        return future

    monkeypatch.setattr(pulse_file, "in_background", ask)
    return asked


def test_an_engine_that_answers_may_take_as_long_as_it_likes(
    moving_clock: list[float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = answering(monkeypatch, True)
    run_for(Pulse(ENDPOINT, "docker compose up"), moving_clock, 3600)
    assert capsys.readouterr().err == ""
    assert asked[0] == 1005.0, "short work costs no question"


@pytest.mark.parametrize("answers", [(None,), (False,), (True, True, None), (True, False)])
def test_one_that_does_not_is_given_up(
    answers: tuple[bool | None, ...],
    moving_clock: list[float],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    answering(monkeypatch, *answers)
    with pytest.raises(EngineTimeout, match="has not answered for 60 s, while docker compose up waited for it"):
        run_for(Pulse(ENDPOINT, "docker compose up"), moving_clock, 100)
    assert capsys.readouterr().err.count("waits for the Docker Engine, which has not answered for 20 s") == 1


def test_one_that_comes_back_in_time(moving_clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, *(False,) * 9, True)
    run_for(Pulse(ENDPOINT, "docker compose up"), moving_clock, 3600)
