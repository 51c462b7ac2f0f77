"""`envgen up --stay` on one machine: which ends of a container are failures, told by what the engine says in time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envgen.app import bundle, stay
from envgen.app.session import Session
from envgen.app.stay import Stay
from envgen.deployment.service import LiveService
from envgen.engine.values import Container
from envgen.errors import EngineError, ServiceError
from envgen.serve import follow

FILE = """
version: 1
name: unit
default_profile: prod
defaults: {base: {image: base:1}, cuda: {arch_list: 12.1a}, gpu: none}
profiles: {prod: {mode: production, services: {web: {command: [web], ready: {port: 80}, ports: ["80:80"]}}}}
"""
RUNS = Container(
    id="a", name="unit-prod-web-1", service="web", state="running", health="", exit_code=0, image_id="", labels={},
    env={}, mounts=(), ports=(), started_at="2026-11-25T23:42:27Z", server=True, finished_at="",
)  # fmt: skip
STOPPED = replace(RUNS, state="exited", finished_at="2026-11-25T23:44:40Z")
DIED = replace(STOPPED, exit_code=75)
AGAIN = replace(RUNS, restarts=1, finished_at="2026-11-25T23:44:40Z")
GONE = EngineError("the Docker Engine is not running")


class StubEngine:
    """Answers each question about the container with the next of ``answers``; the last one stays."""

    def __init__(self, *answers: Container | EngineError | None, others: tuple[Container, ...] = ()) -> None:
        self.answers, self.others = list(answers), others

    def container(self, _name: str) -> Container | None:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, EngineError):
            raise answer
        return answer

    def containers(self, *_: object, **__: object) -> tuple[Container, ...]:
        others, self.others = self.others, ()
        return others

    def image(self, _name: str) -> None:
        return None

    def info(self) -> Any:
        return SimpleNamespace(local=False, memory=1 << 30)

    def logs(self, *_: object, **__: object) -> str:
        return "ValueError: no\n"


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    (tmp_path / "envgen.yaml").write_text(FILE)
    monkeypatch.setattr(bundle, "save", lambda *_: "web.tar.gz")
    yield Session(tmp_path / "envgen.yaml")


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock is a second later."""
    now = iter(range(1, 10_000))
    time = SimpleNamespace(monotonic=lambda: float(next(now)), sleep=lambda _seconds: None)
    monkeypatch.setattr(stay, "time", time)
    monkeypatch.setattr(follow, "time", time)


def watch(session: Session, engine: StubEngine, policy: str = "") -> None:
    deployment: Any = session.deployment().with_cached(engine=engine, compose=SimpleNamespace(files=()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("envgen.deployment.host.connect", lambda *_: engine)
        Stay(LiveService(deployment, "web"), replace(RUNS, restart_policy=policy)).watch()


@pytest.mark.parametrize(
    ("answers", "last"),
    [
        ([RUNS, STOPPED], "web was stopped at 2026-11-25T23:44:40Z"),
        ([RUNS, None], "web was removed"),
        ([RUNS, AGAIN, None], "web was removed"),
        ([RUNS, GONE, GONE, RUNS, STOPPED], "web was stopped at 2026-11-25T23:44:40Z"),  # live-restore
        ([STOPPED, STOPPED, RUNS, RUNS, None], "web was removed"),  # `envgen restart`
    ],
)
def test_what_is_no_failure(
    session: Session, answers: list[Any], last: str, capsys: pytest.CaptureFixture[str]
) -> None:
    watch(session, StubEngine(*answers))
    printed = capsys.readouterr().err
    assert printed.splitlines()[-1] == last
    assert ("web was restarted by Docker (1 time)" in printed) is (AGAIN in answers)


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([RUNS, DIED], "web has ended: its process exited with code 0"),
        ([RUNS, replace(DIED, state="restarting"), AGAIN, DIED], "web has ended: its process exited with code 0"),
        ([RUNS, replace(DIED, exit_code=137, oom_killed=True)], "was killed because memory ran out"),
        ([RUNS, STOPPED, STOPPED, GONE, GONE, STOPPED], "web has ended: it ended with the engine"),
        ([RUNS, GONE, STOPPED], "web has ended: it ended with the engine"),
    ],
)
def test_what_is_a_failure(session: Session, answers: list[Any], why: str) -> None:
    with pytest.raises(ServiceError, match=why) as failed:
        watch(session, StubEngine(*answers))
    assert "web.tar.gz" in str(failed.value)


def test_an_engine_that_starts_its_containers_again(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    stopped = replace(STOPPED, restart_policy="always")
    watch(session, StubEngine(RUNS, stopped, GONE, stopped, RUNS, RUNS, None), "always")
    assert capsys.readouterr().err.splitlines()[-1] == "web was removed"


def test_a_container_that_takes_its_place_is_watched(session: Session) -> None:
    with pytest.raises(ServiceError, match="exited with code 0"):
        watch(session, StubEngine(RUNS, None, DIED, others=(replace(RUNS, id="b"),)))
