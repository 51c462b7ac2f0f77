"""The verbs on services, through click: what they ask of Compose, and what they print."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner, Result

from envgen import cli
from envgen.app.start import Checked
from envgen.deployment.service import LiveService
from envgen.engine.compose import Compose
from envgen.engine.values import COMPOSE_ONE_OFF, Container, ContainerRow, ExecResult
from envgen.errors import EnvgenError, NotFoundError, Problem, ServiceError, UsageError
from envgen.serve.differences import CONFIG_HASH
from envgen.serve.preflight import PreflightError

FILE = """
version: 1
name: unit
default_profile: prod
defaults: {base: {image: base:1}, cuda: {arch_list: 12.1a}, gpu: none}
profiles:
  prod:
    mode: production
    services:
      web: {command: [web]}
      srv: {command: [srv]}
"""


def container(service: str, state: str = "running", *, one_off: bool = False, **more: Any) -> Container:
    name = f"unit-prod-{service}-{'run-1' if one_off else '1'}"
    labels = {COMPOSE_ONE_OFF: str(one_off)}
    fields: dict[str, Any] = {"exit_code": 0, "started_at": "2026-11-22T01:02:03.4Z"}
    fields |= more
    return Container(
        id=f"id-{name}", name=name, service=service, state=state, health="", image_id="sha256:1", labels=labels,
        env={}, mounts=(), ports=(), **fields,
    )  # fmt: skip


class StubEngine:
    """An engine with these containers."""

    def __init__(self) -> None:
        self.found: list[Container] = []

    def info(self) -> Any:
        return SimpleNamespace(local=True)

    def containers(self, _project: str, service: str | None = None, all: bool = False) -> tuple[Container, ...]:
        mine = [one for one in self.found if service in (None, one.service) and not (service and one.one_off)]
        return tuple(one for one in mine if all or one.running)

    def listed(self) -> tuple[ContainerRow, ...]:
        return ()

    def container(self, container_id: str) -> Container | None:
        return next((one for one in self.found if one.id == container_id), None)

    def image(self, _name: str) -> None:
        return None

    def logs(self, _container: str, **_: object) -> str:
        return "Traceback (most recent call last):\n  File x\nValueError: no\n"


Words = list[tuple[str, ...]]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StubEngine:
    (tmp_path / "envgen.yaml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    found = StubEngine()
    monkeypatch.setattr("envgen.deployment.host.connect", lambda *_: found)
    return found


@pytest.fixture
def asked(engine: StubEngine, monkeypatch: pytest.MonkeyPatch) -> Words:
    """What Compose and `docker exec` are asked to do. It stops and removes what it is asked to."""
    words: Words = []

    def run(_self: Compose, *given: str, check: bool = True, **_: object) -> ExecResult:
        words.append(given)
        names = [word for word in given[1:] if not word.startswith("-")]
        chosen = [one for one in engine.found if not names or one.service in names]
        if given[0] == "stop":
            engine.found = [replace(one, state="exited") if one in chosen else one for one in engine.found]
        elif given[0] in ("rm", "down"):
            engine.found = [one for one in engine.found if one not in chosen]
        return ExecResult(1 if "broken" in given else 0, b"{}", b"port is taken\n")

    def interactive(_self: Compose, *given: str) -> int:
        words.append(given)
        return 7

    def attach(_endpoint: object, name: str, argv: Sequence[str], *, options: Sequence[str], tty: bool) -> int:
        words.append((*options, f"tty={tty}", name, *argv[-2:]))
        return 9

    monkeypatch.setattr(Compose, "run", run)
    monkeypatch.setattr(Compose, "interactive", interactive)
    monkeypatch.setattr("envgen.cli.run.exec.attach", attach)
    return words


def invoke(*words: str) -> Result:
    return CliRunner().invoke(cli.main, words, standalone_mode=False)


def fails(error: type[EnvgenError], *words: str) -> str:
    found = invoke(*words).exception
    assert isinstance(found, error), found
    return str(found)


def test_a_server_that_ended_by_itself_fails(engine: StubEngine) -> None:
    died = container("web", "exited", exit_code=75, server=True, finished_at="2026-11-25T01:02:03.4Z")
    gone = replace(died, id="old", service="old")  # of a service that the profile no longer has
    engine.found = [died, container("srv"), gone]
    done = invoke("ps")
    assert done.return_value == 1
    _, shown = done.output.split("\n\n")
    assert shown.splitlines() == [
        "FAIL  web ended by itself at 2026-11-25T01:02:03Z, with exit code 0",
        "      cause: first exception: ValueError: no",
        "      more:  envgen explain web --profile prod",
        "      fix:   envgen up web --profile prod",
    ]
    done = invoke("ps", "--json")
    assert done.return_value == 1 and [bool(row["ended"]) for row in json.loads(done.output)] == [True, False, False]
    again = replace(died, state="running", restarts=2, exit_code=0)
    engine.found = [again, replace(died, id="other", exit_code=0, service="srv")]
    done = invoke("ps")
    assert done.return_value == 0 and "FAIL" not in done.output
    assert "note  web was restarted 2 times by Docker, last at 2026-11-22T01:02:03Z\n" in done.output


def test_stop_is_for_the_named_or_for_all(engine: StubEngine, asked: Words) -> None:
    engine.found = [container("web"), container("srv")]
    assert invoke("stop", "web").stdout == "container unit-prod-web-1 stopped\n"
    engine.found = [container("web"), container("srv")]
    assert json.loads(invoke("stop", "--json").stdout) == {
        "containers": ["unit-prod-web-1", "unit-prod-srv-1"], "left": [],
    }  # fmt: skip
    assert asked == [("stop", "web"), ("stop",)]
    assert "did you mean `web`?" in fails(UsageError, "stop", "wbe")


def test_stop_asks_nothing_where_nothing_runs(engine: StubEngine, asked: Words) -> None:
    engine.found = [container("web", "exited")]
    assert invoke("stop").output == "no running containers for profile prod\n"
    assert asked == []


def test_down_of_one_service_leaves_the_others(engine: StubEngine, asked: Words) -> None:
    engine.found = [container("web"), container("srv")]
    assert invoke("down", "web", "--dry-run").output == "container unit-prod-web-1 would be removed\n"
    assert invoke("down", "web").output.endswith("container unit-prod-web-1 removed\n")
    assert asked == [("rm", "--stop", "--force", "web")]
    assert "envgen down --volumes" in fails(UsageError, "down", "-v", "web")


@pytest.mark.parametrize(("verb", "state"), [("stop", "running"), ("down", "there")])
def test_what_the_engine_still_shows_is_not_called_stopped(
    engine: StubEngine, monkeypatch: pytest.MonkeyPatch, verb: str, state: str
) -> None:
    """Compose may have worked on something else, with exit code 0."""
    engine.found = [container("web")]
    monkeypatch.setattr(Compose, "run", lambda *_, **__: ExecResult(0, b"", b""))
    error = fails(ServiceError, verb)
    assert f"still {state}: unit-prod-web-1" in error and "docker rm --force unit-prod-web-1" in error


def test_restart_wants_a_container(engine: StubEngine, asked: Words) -> None:
    assert "envgen up web --profile prod" in fails(NotFoundError, "restart", "web")
    assert asked == []


def test_ps_for_machines_has_null_and_zones(engine: StubEngine) -> None:
    engine.found = [
        container("web", "exited", exit_code=3),
        container("srv", "created", started_at="0001-01-01T00:00:00Z"),
        container("web", one_off=True),
    ]
    first, second = json.loads(invoke("ps", "--json").output)
    assert (first["state"], first["exit_code"], first["health"]) == ("exited", 3, None)
    assert first["since"] == "2026-11-22T01:02:03.4Z"
    assert (second["exit_code"], second["since"], second["ports"]) == (None, None, [])
    assert "web (run)" in invoke("ps", "-a").output and "web (run)" not in invoke("ps").output
    assert "exited (3)" in invoke("ps").output


def test_logs_take_dockers_options(engine: StubEngine, asked: Words) -> None:
    assert "no containers for web of profile prod" in fails(NotFoundError, "logs", "web")
    engine.found = [container("web"), container("srv")]
    assert invoke("logs", "-ft", "--since", "10m", "-n", "5", "web").return_value == 7
    assert invoke("logs", "--tail=5").return_value == 7
    assert asked == [
        ("--profile", "*", "logs", "--no-log-prefix", "--timestamps", "--follow", "--tail=5", "--since=10m", "web"),
        ("--profile", "*", "logs", "--timestamps", "--tail=5"),
    ]


@pytest.mark.parametrize(
    ("words", "options", "tty"),
    [
        (("exec", "web", "ls", "-u"), (), True),
        (("exec", "-t", "web", "--", "ls", "-u"), (), True),
        (("exec", "-T", "-u", "me", "-w", "/x", "-e", "A=b", "web", "ls", "-u"),
         ("--env=A=b", "--user=me", "--workdir=/x"), False),
    ],
)  # fmt: skip
def test_exec_takes_dockers_options_before_the_service(
    engine: StubEngine, asked: Words, words: tuple[str, ...], options: tuple[str, ...], tty: bool
) -> None:
    engine.found = [container("web")]
    assert invoke(*words).return_value == 9
    assert asked == [(*options, f"tty={tty}", "id-unit-prod-web-1", "ls", "-u")]


def test_an_option_that_is_none_is_not_taken_for_a_service(engine: StubEngine) -> None:
    message = str(invoke("exec", "-x", "web", "ls").exception.message)  # type: ignore[union-attr]
    assert "o such option" in message and "-x" in message  # click's words differ between its releases
    assert "-p is not a command" in fails(UsageError, "exec", "web", "-p", "prod", "--", "ls")
    assert "no command given" in fails(UsageError, "run", "web")


@pytest.mark.parametrize(
    ("words", "service", "command"),
    [
        (("run", "--", "ls", "-l"), "web", ("ls", "-l")),
        (("run", "srv", "ls", "-l"), "srv", ("ls", "-l")),
        (("run", "srv", "--", "srv", "-u"), "srv", ("srv", "-u")),
        (("run", "sh", "-c", "exit 3"), "web", ("sh", "-c", "exit 3")),
    ],
)
def test_run_finds_service_and_command(
    engine: StubEngine, asked: Words, monkeypatch: pytest.MonkeyPatch, words: Any, service: str, command: Any
) -> None:
    monkeypatch.setattr("envgen.serve.preflight.check_once", lambda *_: None)
    assert invoke(*words).return_value == 7
    assert asked == [("--progress=quiet", "run", "--rm", "--no-deps", "-T", service, *command)]


def test_up_refuses_before_anything_is_started(engine: StubEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each service with its own problems; what all of them have is said once."""
    own = ""

    def check(service: LiveService, **_: object) -> NoReturn:
        name = service.name
        raise PreflightError(name, tuple(map(Problem, [*([f"{name}: no"] if own else []), "no image"])))

    monkeypatch.setattr("envgen.app.up.check", check)
    assert fails(PreflightError, "up", "web", "srv", "web") == "web, srv were not started:\nno image"
    monkeypatch.setattr("envgen.app.up.check", Checked)
    monkeypatch.setattr("envgen.app.predict.ask_release", check)
    own = "of its own"
    assert fails(PreflightError, "up", "web", "srv").splitlines() == [
        "web was not started:", "web: no", "no image", "srv was not started:", "srv: no", "no image",
    ]  # fmt: skip


@pytest.mark.parametrize(("noted", "settings"), [("sha-2", "current"), ("sha-1", "differ"), (None, "-")])
def test_ps_compares_the_settings_of_what_runs(
    engine: StubEngine, monkeypatch: pytest.MonkeyPatch, noted: str | None, settings: str
) -> None:
    """By Compose's own digest: a variable of the project file that was edited shows before the next `up`."""
    one = container("web")
    engine.found = [replace(one, labels={**one.labels, **({CONFIG_HASH: noted} if noted else {})})]
    monkeypatch.setattr(Compose, "run", lambda *_, **__: ExecResult(0, b"srv sha-9\nweb sha-2\n", b""))
    assert invoke("ps").output.splitlines()[1].split()[:7] == [
        "web", "running", "-", "-", "not", "the", "profile's",
    ] and f" {settings} " in invoke("ps").output  # fmt: skip
    (row,) = json.loads(invoke("ps", "--json").output)
    assert row["settings"] == (None if settings == "-" else settings)
    monkeypatch.setattr(Compose, "run", lambda *_, **__: ExecResult(1, b"", b"no such option\n"))
    assert json.loads(invoke("ps", "--json").output)[0]["settings"] is None
