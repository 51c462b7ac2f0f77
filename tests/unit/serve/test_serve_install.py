"""Why mounted sources could not be installed: the last line, or the full disk that is behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests_render_make import profile

from envgen.deployment import Deployment
from envgen.deployment.service import LiveService
from envgen.errors import EnvgenError, RefusedError, ServiceError
from envgen.profile.model import Profile
from envgen.serve import start as starts
from envgen.serve.ended import StartFailure, with_profile_named
from envgen.serve.start import CREATE, INSTALL, Start, Step, install

# What uv and envgen-install print for an overlay on a volume of 1 MiB.
FULL = """\
error: Failed to install: trove_classifiers-2026.9.21.13-py3-none-any.whl (trove-classifiers==2026.9.21.13)
cause: failed to copy file from /root/.cache/uv/x to /opt/envgen/env/lib/y: No space left on device (os error 28)
envgen: lib: its build needs hatchling, which could not be installed: write it into pip.tools
"""
OTHER = "envgen: lib: its build needs hatchling, which could not be installed: write it into pip.tools\n"


@pytest.mark.parametrize(
    ("text", "reason", "hint"),
    [
        (FULL, "(exit code 1): a disk is full", "docker system df"),
        (
            OTHER,
            "(exit code 1): lib: its build needs hatchling",
            "envgen run --profile dev web sh",
        ),
        ("", "(exit code 1)", "envgen run --profile dev web sh"),
    ],
)
def test_why(text: str, reason: str, hint: str) -> None:
    def stream(*_: str, on_line: Callable[[str], None], timeout: float) -> Any:
        for line in text.splitlines():
            on_line(line)
        return SimpleNamespace(code=1)

    deployment = Deployment(profile(name="dev"), Path()).with_cached(compose=SimpleNamespace(stream=stream))
    start = Start(LiveService(deployment, "web"), cast(Any, None), lambda _line: None)
    with pytest.raises(ServiceError) as raised:
        install(start, "run")
    (problem,) = raised.value.problems
    assert reason in problem.message and hint in problem.hint


@pytest.mark.parametrize(
    ("variant", "cure", "expected"),
    [
        ("", "`envgen exec SERVICE -- ps`, services.SERVICE.args, or `envgen predict SERVICE`",
         "`envgen exec --profile prod web -- ps`, services.web.args, or `envgen predict --profile prod web`"),
        ("", "`envgen doctor`, `envgen cache clear NAME`, `envgen lock --upgrade vllm`, `envgen render`; `nvidia-smi`",
         "`envgen doctor --profile prod`, `envgen cache clear NAME --profile prod`, `envgen lock --profile prod "
         "--upgrade vllm`, `envgen render`; `nvidia-smi`"),
        ("big", "`envgen up SERVICE --set services.SERVICE.args.dtype=null`",
         "`envgen up --profile prod --variant big web --set services.web.args.dtype=null`"),
    ],
)  # fmt: skip
def test_the_commands_of_a_cure_name_the_profile(variant: str, cure: str, expected: str) -> None:
    assert with_profile_named(cure, replace(profile(name="prod"), variant=variant), "web") == expected


class Engine:
    """The containers of one service. ``there``: their ids."""

    def __init__(self, *there: str) -> None:
        self.there = list(there)

    def containers(self, *_: str, all: bool = False) -> tuple[Any, ...]:
        return tuple(
            SimpleNamespace(id=one, state="running", service="web", one_off=False, active=True, labels={})
            for one in self.there
        )

    def container(self, container_id: str) -> Any:
        return SimpleNamespace(id=container_id) if container_id in self.there else None

    def stop_and_remove(self, container_id: str) -> bool:
        found = container_id in self.there
        self.there = [one for one in self.there if one != container_id]
        return found

    def remove_networks(self, project: str) -> None:
        assert not self.there


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Start:
    services = {"web": SimpleNamespace(interactive=True, host_ports=(), ready=None)}
    hint = lambda verb: f"envgen {verb} --profile dev"  # noqa: E731
    values = {"compose_name": "unit-dev", "services": services, "mounted_sources": {}, "hint": hint}
    deployment = Deployment(cast(Profile, SimpleNamespace(**values)), Path()).with_cached(
        engine=Engine(), lock=None, compose=SimpleNamespace(endpoint=SimpleNamespace(host="unix:///x"), files=())
    )
    monkeypatch.setattr("envgen.serve.start.preflight.is_development", lambda _profile: True)
    monkeypatch.setattr(Start, "alone", lambda _self: None)
    return Start(LiveService(deployment, "web"), not_ready, lambda _line: None)


def not_ready(failure: StartFailure) -> ServiceError:
    return ServiceError(failure.reason, hint=failure.hint)


@pytest.mark.parametrize("created", [False, True])
def test_ctrl_c_removes_what_was_begun(start: Start, created: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was made keeps starting: only the waiting for it ends."""
    engine: Any = start.service.engine

    def compose_up(_start: Start) -> Any:
        engine.there.append("mine")
        if not created:
            raise KeyboardInterrupt
        return SimpleNamespace(id="mine")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(starts, "compose_up", compose_up)
    monkeypatch.setattr(starts, "install", interrupted)
    with pytest.raises(KeyboardInterrupt):
        start.run((CREATE, INSTALL))
    assert engine.there == (["mine"] if created else [])


STOPPED: Any = SimpleNamespace(id="mine", running=False)  # Compose stops the old one after it has created the new one
FAILURES = (
    StartFailure("its container was removed while it started"),
    StartFailure("its process exited with code 143 while starting", STOPPED),
    ServiceError("no"),
    RefusedError("no"),
)


def made(container: Any, before: tuple[str, ...], then: tuple[str, ...], failure: Exception) -> tuple[Step, Step]:
    """Steps of which the first made ``container``, and the second fails when the engine has ``then``."""

    def take(start: Start) -> None:
        start.container, start.before = container, before

    def fail(start: Start) -> None:
        engine: Any = start.service.engine
        engine.there = list(then)
        raise failure

    return Step(take, CREATE.clean_up), Step(fail)


@pytest.mark.parametrize("failure", FAILURES, ids=["removed", "stopped", "ServiceError", "RefusedError"])
@pytest.mark.parametrize(
    ("then", "left"),
    [(("mine",), []), ((), []), (("successor",), ["successor"]), (("mine", "other"), ["other"])],
    ids=["there", "gone", "replaced", "replacing"],
)
def test_a_failed_start_removes_the_container_that_it_created(
    start: Start, failure: Exception, then: tuple[str, ...], left: list[str]
) -> None:
    """And none that has taken its place: another `envgen up` made it, or the owner's own `docker compose`."""
    engine: Any = start.service.engine
    with pytest.raises(EnvgenError) as raised:
        start.run(made(SimpleNamespace(id="mine", running=True), (), then, failure))
    assert engine.there == left
    if isinstance(failure, StartFailure) and left:
        assert "was replaced while it started; the new one (running) is left as it is" in str(raised.value)
        assert raised.value.problems[0].hint == "envgen ps --profile dev"


def test_a_container_that_ran_before_stays(start: Start) -> None:
    engine: Any = start.service.engine
    with pytest.raises(ServiceError):
        start.run(made(SimpleNamespace(id="older"), ("older",), ("older",), ServiceError("no")))
    assert engine.there == ["older"]


def test_the_reason_is_found_before_anything_is_removed(start: Start) -> None:
    engine: Any = start.service.engine
    there = list[str]()

    def reason(failure: StartFailure) -> ServiceError:
        there.extend(engine.there)
        return not_ready(failure)

    start.failed = reason
    with pytest.raises(ServiceError):
        start.run(made(SimpleNamespace(id="mine"), (), ("mine",), StartFailure("no", STOPPED)))
    assert there == ["mine"] and engine.there == []


def test_containers_are_listed_before_and_after_one_is_made(start: Start) -> None:
    """And not a third time: a list of many containers is an inspection of each."""
    engine: Any = start.service.engine
    lists = list[bool]()

    def containers(*words: str, all: bool = False) -> tuple[Any, ...]:
        lists.append(all)
        return Engine.containers(engine, *words, all=all)

    def stream(*words: str, on_line: Callable[[str], None], timeout: float) -> Any:
        engine.there.append("mine")
        return SimpleNamespace(code=0)

    engine.containers = containers
    compose: Any = start.service.deployment.compose
    compose.stream = stream
    CREATE.take(start)
    assert start.container is not None and (start.container.id, start.already) == ("mine", False)
    assert lists == [True, True]
