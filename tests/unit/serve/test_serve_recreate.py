"""What is printed where `up` would replace a running container."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests_render_make import profile

from envgen.app.start import Checked, StartOptions
from envgen.app.up import start_all
from envgen.deployment import Deployment
from envgen.deployment.service import LiveService
from envgen.engine.client import Engine
from envgen.engine.compose import Compose
from envgen.engine.values import Container, ExecResult
from envgen.errors import EnvgenError, ServiceError
from envgen.profile.service import Service
from envgen.serve.differences import NotReplaced, differences, recreate_refused
from envgen.serve.ended import StartFailure
from envgen.serve.start import StartResult
from envgen.serve.wait import Waiter

RUNS = Container(
    id="1", name="lab-web-1", service="web", state="running", health="healthy", exit_code=0, image_id="sha256:1",
    labels={}, env={}, mounts=(), ports=(), started_at="2026-11-22T01:02:03Z",
)  # fmt: skip


def deployment(described: Mapping[str, Any], runs: Sequence[str] = (), **more: Any) -> LiveService:
    """Where Compose would replace the container, and describes the service so; the one that is there ``runs`` this."""

    class Described(Compose):
        def run(self, *words: str, timeout: float | None = 600, check: bool = True) -> ExecResult:
            document = json.dumps({"services": {"web": described}}).encode()
            return ExecResult(0, b"web other\n" if "--hash" in words else document, b"")

    engine: Any = SimpleNamespace(image=lambda _name: None, inspect=lambda _id: {"Config": {"Cmd": list(runs)}})
    made = Deployment(profile(name="lab", **more), Path()).with_cached(
        engine=engine, compose=Described(cast(Any, None), (), Path(), "lab")
    )
    return LiveService(made, "web")


def test_the_command_below_what_differs_has_the_variant_and_the_values_that_were_given() -> None:
    """Without them it would start something else."""
    found = profile(name="lab", variant="small", options=("--set", "services.web.env.A=b c"))
    text = str(
        recreate_refused(
            LiveService(Deployment(found, Path()), "web"), ["image: a is now b", "environment: LEVEL=1 is new"]
        )
    )
    assert text.splitlines()[1:] == [
        "image: a is now b",
        "environment: LEVEL=1 is new",
        "    hint: envgen up web --profile lab --set 'services.web.env.A=b c' --variant small --recreate",
    ]


@dataclass(frozen=True)
class Begun(Checked):
    """Whose start fails, or ends well."""

    fails: EnvgenError | None = None

    def start(self, _agree: Any, _options: StartOptions) -> StartResult:
        if self.fails:
            raise self.fails
        return cast(StartResult, None)


def begun(service: str, *, running: bool = False, fails: EnvgenError | None = None) -> Begun:
    found = profile(name="lab", services={service: Service(command=("x",))})
    runs = replace(RUNS, service=service) if running else None
    differing = ("image: a is now b",) if isinstance(fails, NotReplaced) else ()
    return Begun(LiveService(Deployment(found, Path()), service), runs, differing, fails=fails)


def test_only_services_that_were_to_start_count_as_not_started() -> None:
    """One runs and is kept, one runs with other settings and the user says no."""
    kept = recreate_refused(LiveService(Deployment(profile(name="lab"), Path()), "web"), ["image: a is now b"])
    chosen = [begun("old", running=True), begun("web", running=True, fails=kept), begun("new")]
    with pytest.raises(EnvgenError) as caught:
        list(start_all(chosen, lambda _question: False, StartOptions()))
    assert "not start" not in str(caught.value) and "image: a is now b" in str(caught.value)
    chosen.append(begun("bad", fails=ServiceError("bad is not ready: its process exited")))
    with pytest.raises(EnvgenError, match="1 of 2 services did not start: bad\n"):
        list(start_all(chosen, lambda _question: False, StartOptions()))
    with pytest.raises(EnvgenError, match=r"^bad is not ready"):
        list(start_all([chosen[0], chosen[-1]], lambda _question: False, StartOptions()))
    with pytest.raises(EnvgenError, match="1 of 3 services did not start: bad\n"):
        list(start_all(chosen, lambda _question: False, StartOptions(recreate=True)))


@pytest.mark.parametrize("colour", [False, True])
def test_each_phase_has_a_line_when_it_ends(monkeypatch: pytest.MonkeyPatch, colour: bool) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR" if colour else "NO_COLOR", "1")
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    waiter = Waiter(cast(Engine, None), "web", Service(("web",)), "", (lines := list[str]()).append)
    waiter.report()
    waiter.progress.feed("INFO Starting to load model x")
    waiter.progress.feed("INFO init engine (profile, create kv cache, warmup model) took 1.00 s")
    waiter.progress.finish()
    mark = "\x1b[32mok  \x1b[0m" if colour else "ok  "
    phases = ("start     ", "weights   ", "api server")
    assert lines == [f"  {mark}  web: {phase}    0.0 s" for phase in phases]


def test_without_a_live_line_a_long_phase_is_named_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now, lines = [100.0], list[str]()
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    waiter = Waiter(cast(Engine, None), "web", Service(("web",)), "", lines.append)
    for _ in range(13):
        waiter.report()
        now[0] += 10
    assert lines == ["  web: starting, 60 s", "  web: starting, 120 s"]


def test_a_loop_names_the_exit_code_although_the_program_runs_again() -> None:
    """While it runs, Docker's exit code is 0."""
    again = replace(RUNS, state="restarting", exit_code=5, restarts=2)
    states = (RUNS, RUNS, again, replace(RUNS, restarts=3))
    looks = iter([replace(one, health="starting") for one in states])  # healthy, it would be ready
    engine: Any = SimpleNamespace(container=lambda _id: next(looks), logs=lambda _id, **_: "")
    with pytest.raises(StartFailure, match="it ended 3 times, last with 5"):
        Waiter(engine, "web", Service(("web",)), "", lambda _line: None).wait("1", time.monotonic() + 60)


def test_a_dollar_sign_is_no_difference() -> None:
    """Compose prints each one twice: that is how its file has it."""
    command = ["sh", "-c", "echo $LEVEL $$"]
    printed = {"command": ["sh", "-c", "echo $$LEVEL $$$$"], "environment": {"A": "$$"}}
    assert differences(deployment(printed, runs=command), RUNS) == ("environment: A=$ is new",)


def test_no_variable_that_is_named_like_a_secret_is_shown() -> None:
    printed = {"environment": {"HF_TOKEN": "word", "MY_PASSWORD": "new", "MAX_TOKENS": "2"}}
    runs = replace(RUNS, env={"MY_PASSWORD": "old", "MAX_TOKENS": "1"})
    lines = differences(deployment(printed), runs)
    assert [line.removeprefix("environment: ") for line in lines] == [
        "HF_TOKEN has another value", "MAX_TOKENS=1 is now 2", "MY_PASSWORD has another value",
    ]  # fmt: skip


def test_no_value_that_the_shell_passes_on_is_shown() -> None:
    """Whatever its name: it is one of the profile's `secrets`, or a proxy's address."""
    printed = {"environment": {"LICENCE": "plain", "http_proxy": "plain", "LEVEL": "2"}}
    lines = differences(
        deployment(printed, secrets=("LICENCE",)),
        replace(RUNS, env={"LICENCE": "worn", "http_proxy": "worn", "LEVEL": "1"}),
    )
    assert [line.removeprefix("environment: ") for line in lines] == [
        "LEVEL=1 is now 2", "LICENCE has another value", "http_proxy has another value",
    ]  # fmt: skip
