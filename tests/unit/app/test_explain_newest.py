"""The newest failure: of a build, of a start, or of a service that ended by itself."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from envgen.app import explain
from envgen.cli.check import explain as explain_command
from envgen.deployment import Deployment
from envgen.engine.values import SERVER, container_of
from envgen.errors import EngineError

LOG = "envgen: starting the server\nvllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.\n"


def deployment(root: Path, log: str = LOG, **state: Any) -> Deployment:
    """A deployment with one container of `serve`, which ended at second 2000."""
    document = {
        "Id": "3f" * 32, "Name": "/lab-cpu-serve-1",
        "Config": {"Cmd": [SERVER, "vllm"], "Labels": {"com.docker.compose.service": "serve"}},
        "State": {"Status": "exited", "ExitCode": 75, "StartedAt": "1970-01-01T00:30:00Z",
                  "FinishedAt": "1970-01-01T00:33:20Z", **state},
    }  # fmt: skip
    engine = SimpleNamespace(logs=lambda *_words, **_how: log)
    profile = SimpleNamespace(services={"serve": None}, name="cpu")
    found = SimpleNamespace(
        root=root, engine=engine, profile=profile, containers=lambda *_, **__: [container_of(document)]
    )
    return cast(Deployment, found)


def write(path: Path, text: str, when: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (when, when))


def newest(deployment: Deployment, service: str | None = None) -> explain.PastFailure | None:
    return explain.newest(deployment.root, deployment, service)


def test_a_service_that_ended_by_itself_is_the_newest_failure(tmp_path: Path) -> None:
    write(tmp_path / ".envgen/logs/build-cpu.log", "ended with 1 after 3.0 s \n", 1990)
    write(tmp_path / ".envgen/crash/19700101T003300Z-serve.tar.gz", "", 1980)
    for service in (None, "serve"):
        found = newest(deployment(tmp_path), service)
        assert found is not None and (found.kind, found.service) == ("service", "serve")
        assert found.text.startswith("serve ended by itself at 1970-01-01T00:33:20Z")
    write(tmp_path / ".envgen/logs/build-cpu.log", "ended with 1 after 3.0 s \n", 2010)
    found = newest(deployment(tmp_path))
    assert found is not None and found.kind == "build"
    found = newest(deployment(tmp_path), "serve")
    assert found is not None and found.kind == "service"


@pytest.mark.parametrize("state", [{"ExitCode": 0}, {"Status": "running"}, {"Status": "created", "FinishedAt": ""}])
def test_what_was_stopped_or_runs_is_no_failure(tmp_path: Path, state: dict[str, Any]) -> None:
    assert newest(deployment(tmp_path, **state)) is None


def test_without_an_engine_the_files_are_looked_at(tmp_path: Path) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise EngineError("it is not running")

    write(tmp_path / ".envgen/crash/19700101T003300Z-serve.tar.gz", "", 1980)
    asked = cast(Any, deployment(tmp_path))
    asked.containers = refuse
    for service in (None, "serve"):
        found = newest(asked, service)
        assert found is not None and (found.kind, found.when) == ("start", 1980)


def test_a_build_that_was_cancelled_is_no_failure(tmp_path: Path) -> None:
    write(tmp_path / ".envgen/logs/build-cpu.log", "#5 [2/3] RUN x\ncancelled\n", 3000)
    assert explain.newest(tmp_path) is None


def test_what_changed_since_it_worked_is_the_bundles_or_of_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session: Any = SimpleNamespace(profile=lambda: None, deployment=lambda: deployment(tmp_path))
    monkeypatch.setattr(explain_command, "since_it_worked", lambda service: f"{service.name}: driver 580 → 590")
    log = explain.Log("x", io.BytesIO())
    ended = explain.PastFailure("service", 1.0, "", lambda: log, "serve")
    build = replace(ended, service="")
    assert explain_command._changes(session, ended, log) == "serve: driver 580 → 590"
    assert explain_command._changes(session, build, log) == explain_command._changes(session, None, log) == ""
    told = replace(log, about={"changes": "kernel 6.17 → 7.0\x1b"})
    assert explain_command._changes(session, ended, told) == "kernel 6.17 → 7.0\\x1b"


@pytest.mark.parametrize(("restarts", "until"), [(0, ""), (2, "2100.000000000")])
def test_all_of_the_run_that_ended_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarts: int, until: str
) -> None:
    """Of a service that Docker started again, the log of the run before; and never its last lines alone."""
    asked: list[dict[str, Any]] = []
    state: dict[str, Any] = {"Status": "running", "Running": True, "StartedAt": "1970-01-01T00:35:00Z"}
    made: Any = deployment(tmp_path, **(state if restarts else {}))
    container = replace(made.containers()[0], restarts=restarts)
    monkeypatch.setattr(made, "containers", lambda *_words, **_how: [container])
    monkeypatch.setattr(made, "lock", None, raising=False)

    def logs(_id: str, **how: Any) -> str:
        asked.append(how)
        return LOG

    monkeypatch.setattr(made.engine, "logs", logs)
    found = newest(made, "serve")
    assert found is not None
    monkeypatch.setattr(explain, "known_of", lambda *_words: None)
    found.open()
    assert (asked[-1]["tail"], asked[-1]["until"]) == (None, until)
