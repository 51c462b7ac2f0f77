"""How long a sick engine is waited for."""

from __future__ import annotations

import io

import pytest
import requests

from envgen.engine.api import QUESTION, WORK
from envgen.engine.endpoint import Endpoint
from envgen.engine.process import AGAIN
from envgen.engine.sdk import EngineSession, wrap_errors
from envgen.errors import EngineTimeout

ENDPOINT = Endpoint("unix:///a.sock", "the default")


@pytest.mark.parametrize("seconds", [QUESTION, WORK])
def test_an_engine_without_an_answer_is_left_alone_for_a_while(monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    """A command with many questions must not wait for each of them."""
    now, limits, is_sick = [100.0], list[float](), [True]

    def send(*_: object, timeout: float, **__: object) -> requests.Response:
        limits.append(timeout)
        if is_sick[0]:
            raise requests.ReadTimeout from TimeoutError()
        answer = requests.Response()
        answer.status_code, answer.raw = 200, io.BytesIO(b"[]")
        return answer

    monkeypatch.setattr("docker.APIClient.send", send)
    monkeypatch.setattr("envgen.engine.sdk.time.monotonic", lambda: now[0])
    session = EngineSession(ENDPOINT, "1.43", seconds)
    for _ in range(2):
        with (
            pytest.raises(EngineTimeout, match=r"at unix:///a\.sock .* does not answer in time"),
            wrap_errors(ENDPOINT),
        ):
            session.containers()
    assert limits == [seconds]
    now[0] += AGAIN
    with pytest.raises(requests.ReadTimeout):  # what the SDK does not ask itself, such as a log
        session.get("http+docker://localhost/containers/1/logs", stream=True)
    assert limits == [seconds] * 2
    now[0] += AGAIN
    is_sick[0] = False
    assert session.containers() == []
