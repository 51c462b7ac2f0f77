"""While another program works with an engine, envgen watches whether it still answers."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Any

import pytest

from envgen.engine import pulse as pulse_file
from envgen.engine.endpoint import Endpoint
from envgen.engine.pulse import Pulse
from envgen.errors import EngineError, EngineTimeout

ENDPOINT: Any = Endpoint("unix:///x", "the default")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def run(pulse: Pulse, clock: list[float], seconds: float) -> None:
    until = clock[0] + seconds
    while clock[0] < until:
        clock[0] += 0.5
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
    clock: list[float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = answering(monkeypatch, True)
    run(Pulse(ENDPOINT, "docker compose up"), clock, 3600)
    assert capsys.readouterr().err == ""
    assert asked[0] == 1005.0, "short work costs no question"


@pytest.mark.parametrize("answers", [(None,), (False,), (True, True, None), (True, False)])
def test_one_that_does_not_is_given_up(
    answers: tuple[bool | None, ...],
    clock: list[float],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    answering(monkeypatch, *answers)
    with pytest.raises(EngineTimeout, match="has not answered for 60 s, while docker compose up waited for it"):
        run(Pulse(ENDPOINT, "docker compose up"), clock, 100)
    assert capsys.readouterr().err.count("waits for the Docker Engine, which has not answered for 20 s") == 1


def test_one_that_comes_back_in_time(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, *(False,) * 9, True)
    run(Pulse(ENDPOINT, "docker compose up"), clock, 3600)
