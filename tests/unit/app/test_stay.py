"""A service on several machines that fails while it is watched: ended for good, or started again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from envgen.app import services
from envgen.errors import EngineError, EnvgenError, Problem, ServiceError
from envgen.serve.preflight import PreflightError


class Scene:
    """Machines that fail in the order of ``failures``; what was done with them is in ``done``."""

    def __init__(self, restarts: int, failures: list[Exception]) -> None:
        self.restarts, self.failures, self.done, self.service = restarts, failures, list[Any](), "serve"
        self.group = SimpleNamespace(stay=self.stay, take_down=lambda: self.done.append("down"))

    def stay(self, _canary: float) -> None:
        self.done.append("watch")
        raise self.failures.pop(0)

    def check(self, *_: Any) -> Scene:
        self.done.append("check")
        if isinstance(self.failures[0], PreflightError):
            raise self.failures.pop(0)
        return self

    def start(self, *_: Any, **__: Any) -> None:
        self.done.append("start")
        if isinstance(self.failures[0], EngineError):
            raise self.failures.pop(0)


def stay(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Exception:
    monkeypatch.setattr(services, "check", scene.check)
    monkeypatch.setattr(services, "start", scene.start)
    monkeypatch.setattr("envgen.app.services.time.sleep", scene.done.append)
    with pytest.raises(EnvgenError) as raised:
        services.stay(None, scene, 30, None)  # type: ignore[arg-type]
    return raised.value


def test_a_failure_ends_it_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(0, [last := ServiceError("one ended")])
    assert stay(scene, monkeypatch) is last
    assert scene.done == ["watch"]


def test_all_is_started_again_as_often_as_it_may(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = PreflightError("serve", (Problem("two: no route to host"),))
    failures = [ServiceError("two ended"), absent, EngineError("gone"), last := ServiceError("one ended")]
    scene = Scene(3, list(failures))
    assert stay(scene, monkeypatch) is last
    again = ["down", "check"]
    assert scene.done == ["watch", 5.0, *again, 10.0, *again, "start", 20.0, *again, "start", "watch"]
    said = capsys.readouterr().err
    assert [f"{failure}" in said for failure in failures] == [True, True, True, False]
    assert "serve: starting all again in 5 s, 1 of 3 (on_failure)" in said


def test_what_belongs_to_another_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (KeyboardInterrupt(), RuntimeError("a defect")):
        scene = Scene(3, [error])  # type: ignore[list-item]
        monkeypatch.setattr("envgen.app.services.time.sleep", scene.done.append)
        with pytest.raises(type(error)):
            services.stay(None, scene, 30, None)  # type: ignore[arg-type]
        assert scene.done == ["watch"]


@pytest.mark.parametrize(("verb", "again"), [("restart", True), ("start", False)])
def test_what_was_stopped_on_all_machines_is_started(verb: str, again: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[Any]()
    profile: Any = SimpleNamespace(name="prod", compose_name="p-prod")

    def noted(answer: Any) -> Any:
        def ask(*_: Any, **how: Any) -> Any:
            asked.append(how)
            return answer

        return ask

    engine = SimpleNamespace(containers=noted(["stopped"]))
    here = SimpleNamespace(node="one", engine=engine, profile=profile, root=None)
    session: Any = SimpleNamespace(profile=lambda: profile)
    monkeypatch.setattr(services, "place_of", lambda *_: here)
    monkeypatch.setattr("envgen.app.services.whose.demand", lambda *_: None)
    monkeypatch.setattr(services, "of_running", noted(session))
    monkeypatch.setattr(services, "check", lambda *_: "checked")
    monkeypatch.setattr(services, "start", noted("started"))
    assert list(services.again(verb, session, "serve", 7)) == [profile, "started"]
    assert asked == [{"all": True}, {"stopped": True}, {"timeout": 7, "again": again}]
