"""How long questions to a sick engine may take, all together."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable

import pytest
import requests

from envgen.engine import session
from envgen.engine.endpoint import Endpoint
from envgen.engine.session import PATIENT, QUESTION, SICK, START, Patience, Session
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
    monkeypatch.setattr(session, "within", found.within)
    monkeypatch.setattr(session.time, "monotonic", lambda: found.now)
    monkeypatch.setattr(session, "_by_host", {})
    monkeypatch.setattr(session, "_hurried", [])

    def send(*_: object, **__: object) -> requests.Response:
        answer = requests.Response()
        answer.status_code, answer.raw = 200, io.BytesIO(b"[]")
        return answer

    monkeypatch.setattr("docker.APIClient.send", send)
    return found


def ask(host: str = "unix:///a.sock", seconds: float = QUESTION) -> None:
    Session(Endpoint(host, "the default"), "1.43").get("http+docker://localhost/x", timeout=seconds)


@pytest.mark.parametrize("answer_after", [0.3, 1.0, 4.9, 1e9])
def test_a_command_in_a_hurry_ends_however_the_engine_trickles(clock: Clock, answer_after: float) -> None:
    """Slow answers add up too: a hundred of 0.3 seconds each would take half a minute."""
    session.hurry(7.0)
    clock.answer_after = answer_after
    for number in range(100):
        with contextlib.suppress(EngineTimeout):
            ask(seconds=(5, QUESTION, START)[number % 3])
    assert clock.now == pytest.approx(7.0)
    with pytest.raises(EngineTimeout, match="within 7 s"):
        ask()
    assert clock.now == pytest.approx(7.0), "nothing is asked any more"


def test_other_commands_ask_a_sick_engine_shortly_until_it_answers(clock: Clock) -> None:
    clock.answer_after = 1e9
    for took in (QUESTION, SICK, SICK):
        before = clock.now
        with pytest.raises(EngineTimeout):
            ask()
        assert clock.now - before == took
    clock.answer_after = 0.5
    ask()
    clock.answer_after = 5
    ask()  # trusted again
    clock.answer_after = 1e9
    before = clock.now
    with pytest.raises(EngineTimeout):
        ask("unix:///other.sock")
    assert clock.now - before == QUESTION, "one sick engine says nothing about another"


def test_work_is_not_a_question() -> None:
    patience = Patience(0, least=SICK, renews=True)
    assert [patience.limit(wanted) for wanted in (0.5, PATIENT, START, 300)] == [0.5, SICK, START, 300]
