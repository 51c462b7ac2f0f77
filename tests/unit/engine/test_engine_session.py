"""How long questions to a sick engine may take, all together."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable

import pytest
import requests

from envgen.engine import api
from envgen.engine.api import PATIENT, QUESTION, START
from envgen.engine.endpoint import Endpoint
from envgen.engine.sdk import EngineSession
from envgen.errors import EngineTimeout


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
