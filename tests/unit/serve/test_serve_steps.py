"""The steps of a start, one by one: what they run, what they say, and what they undo."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envgen.deployment import Deployment
from envgen.deployment.service import LiveService
from envgen.engine.values import Container, ContainerMount
from envgen.errors import EngineError, EnvgenError, ProcessError, RefusedError, ServiceError
from envgen.profile.load import load_project
from envgen.profile.service import Health, Ready, Service
from envgen.profile.values import Duration
from envgen.render.environment import overlay_volume
from envgen.serve import prepare as prepares
from envgen.serve.differences import CONFIG_HASH, differences, settings_differ
from envgen.serve.ended import StartFailure
from envgen.serve.start import CREATE, INSTALL, PREPARE, Start, Step, compose_up, patience

FILE = """\
version: 1
name: lab
profiles:
  p:
    mode: development
    base: {image: base:1}
    cuda: {arch_list: 12.1a}
    gpu: none
    secrets: [TOKEN]
    sources:
      lib: {origin: {checkout: lib}, package: lib, distribution: lib, mount: /code/lib}
    services:
      web: {command: [web]}
      shell: {command: [sh], interactive: true}
"""
RUNS = Container(
    id="old", name="lab-p-web-1", service="web", state="running", health="", exit_code=0, image_id="sha256:1",
    labels={}, env={}, mounts=(), ports=(), started_at="",
)  # fmt: skip
NEW = replace(RUNS, id="new")
ONE_OFF = replace(RUNS, labels={"com.docker.compose.oneoff": "True"})
NET = f"Error response from daemon: network {'a' * 64} not found"


class World:
    """An engine and Compose that do what a test says, and what they were told."""

    def __init__(self, folder: Path) -> None:
        (folder / "envgen.yaml").write_text(FILE)
        self.profile = load_project(file=folder / "envgen.yaml", environ={}).project.profiles["p"]
        self.folder = folder
        self.codes: list[int] = []
        self.lines: list[str] = []
        self.there: list[Container] = []
        self.after: list[Container] | None = None  # what is there once Compose has run
        self.calls: list[Any] = []
        self.lost = False

    def stream(self, *words: str, on_line: Any, timeout: float) -> Any:
        self.calls.append(words)
        for line in self.lines:
            on_line(line)
        if self.after is not None:
            self.there = self.after
        return SimpleNamespace(code=self.codes.pop(0) if self.codes else 0)

    def containers(self, _project: str, service: str = "", *, all: bool = False) -> tuple[Container, ...]:
        return tuple(one for one in self.there if not service or one.service == service)

    def stop_and_remove(self, container_id: str) -> bool:
        if self.lost:
            raise EngineError("lost")
        self.calls.append(("remove", container_id))
        self.there = [one for one in self.there if one.id != container_id]
        return True

    def start(self, service: str = "web", **values: Any) -> Start:
        engine: Any = SimpleNamespace(
            info=lambda: SimpleNamespace(local=True), containers=self.containers, listed=lambda: (),
            stop_and_remove=self.stop_and_remove, remove_networks=lambda name: self.calls.append(("networks", name)),
        )  # fmt: skip
        deployment = Deployment(self.profile, self.folder).with_cached(
            engine=engine, compose=SimpleNamespace(stream=self.stream)
        )
        said: list[str] = []
        made = Start(LiveService(deployment, service), lambda one: EnvgenError(str(one)), said.append, **values)
        made.__dict__["said"] = said
        return made


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


UP = ("up", "--detach", "--no-build", "--pull", "never")
RUN = ("run", "--rm", "--no-deps", "-T")


@pytest.mark.parametrize(
    ("there", "service", "calls", "already"),
    [
        ((), "web", [(*RUN, "web", "envgen-install"), (*UP, "web")], False),
        ((RUNS,), "web", [("exec", "-T", "web", "envgen-install"), (*UP, "web")], True),
        ((replace(RUNS, state="exited"),), "web", [(*RUN, "web", "envgen-install"), (*UP, "web")], False),
        (
            (ONE_OFF,),
            "web",
            [(*RUN, "web", "envgen-install"), (*UP, "web")],
            False,
        ),
        # A shell service gets its sources while it runs.
        ((), "shell", [(*UP, "shell"), ("exec", "-T", "shell", "envgen-install")], False),
    ],
)
def test_create_and_install(world: World, there: Any, service: str, calls: Any, already: bool) -> None:
    world.there = [replace(one, service=service) for one in there]
    kept = world.there if already else [replace(NEW, service=service)]
    start = world.start(service)
    world.after = kept
    CREATE.take(start)
    INSTALL.take(start)
    assert world.calls == calls
    assert (start.already, start.container) == (already, kept[0])
    assert start.before == tuple(one.id for one in there if not one.one_off)


@pytest.mark.parametrize(
    ("codes", "lines", "recreate", "after", "ways", "outcome"),
    [
        ([0], [], False, [NEW], [UP], "new"),
        ([0], [], True, [NEW], [(*UP, "--force-recreate")], "new"),
        ([1], [NET], True, [NEW], [(*UP, "--force-recreate")], "docker compose ended with 1"),
        ([17], ["odd"], False, [NEW], [UP], "docker compose ended with 17"),
        ([17], ["odd"], False, [], [UP], "docker compose ended with 17"),
        ([0], [], False, [], [UP], "its container is already gone"),
    ],
)
def test_compose_up(world: World, codes: Any, lines: Any, recreate: bool, after: Any, ways: Any, outcome: str) -> None:
    world.codes, world.lines, world.after = codes, lines, after
    try:
        answer = compose_up(world.start(recreate=recreate)).id
    except StartFailure as failure:
        answer = failure.reason
        assert failure.lines == tuple(lines) and failure.container == (after[0] if after else None)
    except ServiceError as error:
        answer = str(error)
    assert outcome in answer and world.calls == [(*way, "web") for way in ways]


@pytest.mark.parametrize(
    ("before", "container", "there", "calls"),
    [
        (None, None, [RUNS], []),  # nothing was created yet
        (("old",), None, [RUNS], []),
        (("old",), None, [RUNS, NEW], [("remove", "new")]),
        ((), NEW, [NEW], [("remove", "new"), ("networks", "lab-p")]),
        (("old",), RUNS, [RUNS], []),  # it was there before
    ],
)
def test_what_a_failed_start_made_goes(world: World, before: Any, container: Any, there: Any, calls: Any) -> None:
    start = world.start()
    start.before, start.container, world.there = before, container, there
    CREATE.clean_up(start)
    assert world.calls == calls
    removed = calls[:1] == [("remove", "new")]
    assert start.__dict__["said"] == (["  web: removed the partly started container"] if removed else [])


@pytest.mark.parametrize(
    ("error", "raised", "undone"),
    [
        (StartFailure("it broke"), "it broke", ["second", "first"]),
        (ProcessError(["docker"], 3, "bad"), "web was not started: `docker` ended with 3: bad", ["second", "first"]),
        (RefusedError("no"), "no", ["second", "first"]),
        (ServiceError("so"), "so", ["second", "first"]),
        (KeyboardInterrupt(), "", ["second", "first"]),
    ],
)
def test_steps_are_undone_from_the_last_that_was_taken(world: World, error: Any, raised: str, undone: Any) -> None:
    seen: list[str] = []

    def fail(_start: Start) -> None:
        raise error

    steps = [
        Step(lambda _: None, lambda _: seen.append("first")),
        Step(fail, lambda _: seen.append("second")),
        Step(lambda _: seen.append("never")),
    ]
    with pytest.raises(type(error) if not isinstance(error, (StartFailure, ProcessError)) else EnvgenError) as caught:
        world.start().run(steps)
    assert seen == undone and raised in str(caught.value)


def test_ctrl_c_leaves_a_container_that_exists(world: World) -> None:
    seen: list[str] = []

    def interrupted(start: Start) -> None:
        start.container = NEW
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.start().run([Step(interrupted, lambda _: seen.append("undone"))])
    assert seen == []


def test_an_engine_that_is_lost_while_cleaning_up_does_not_hide_the_failure(world: World) -> None:
    def fail(start: Start) -> None:
        start.before, start.container, world.lost = (), NEW, True
        raise StartFailure("it broke")

    with pytest.raises(EnvgenError, match="it broke"):
        world.start().run([Step(fail, CREATE.clean_up)])


@pytest.mark.parametrize(
    ("failed", "there", "reason"),
    [
        (None, [replace(RUNS, state="exited")], "it ended"),
        (replace(NEW, state="running"), [NEW, RUNS], "it ended"),
        (replace(NEW, state="exited"), [replace(NEW, state="exited"), RUNS], "the new one (running) is left as it is"),
        (replace(NEW, state="exited"), [NEW], "it ended"),
    ],
)
def test_a_container_that_another_replaced(world: World, failed: Any, there: Any, reason: str) -> None:
    start = world.start()
    world.there = there
    start.container = NEW if failed else None
    kept = start._unless_replaced(StartFailure("it ended", failed))
    assert kept.reason.endswith(reason) and (kept.container is None) == (failed is None or "left" in reason)


def test_a_start_is_prepared_where_that_was_asked(world: World) -> None:
    seen: list[str] = []
    PREPARE.take(world.start(prepare=lambda: seen.append("prepared")))
    PREPARE.take(world.start())
    assert seen == ["prepared"]


def test_patience() -> None:
    health = Health("/", start_period=Duration.parse("10s"), interval=Duration.parse("5s"), retries=3)
    assert patience(Service(("web",), health=health)) == 85.0
    assert patience(Service(("web",))) == 60.0
    assert patience(Service(("web",), ready=Ready(port=80, timeout=Duration.parse("9s")))) == 9.0
    assert patience(Service(("vllm", "serve", "/m"))) == Ready().timeout.seconds


# What differs from a container that runs

OTHER = "other settings of the Compose file"


@pytest.mark.parametrize(
    ("described", "document", "runs", "lines"),
    [
        ({"command": ["a", "b"]}, {"Config": {"Cmd": ["a", "c"]}}, {}, ["command: -c +b"]),
        ({"command": ["a", "b"]}, {"Config": {"Cmd": ["b", "a"]}}, {}, ["command: the same words in another order"]),
        ({"command": ["a"]}, {"Config": {"Cmd": ["a"]}}, {}, [OTHER]),
        ({"entrypoint": ["x"]}, {}, {}, ["entrypoint: +x"]),
        ({"user": "1000:1000"}, {}, {}, ["user: root is now 1000:1000"]),
        ({"image": "x"}, {}, {"user": "1000:1000"}, ["user: 1000:1000 is now root"]),
        ({"image": "x"}, {}, {"user": "vllm"}, [OTHER]),  # the image's own
        ({"environment": {"A": "1", "B": None, "C": 3}}, {}, {"env": {"A": "1", "C": "3"}},
         [OTHER]),
        ({"environment": {"A": "2", "N": "x"}}, {}, {"env": {"A": "1", "GONE": "y", "OF_IMAGE": "z"}},
         ["environment: A=1 is now 2", "environment: N=x is new", "environment: GONE is no longer set"]),
        ({"environment": {"TOKEN": "b"}}, {}, {"env": {"TOKEN": "a"}}, ["environment: TOKEN has another value"]),
        ({"environment": {"DB_PASSWORD": "b"}}, {}, {"env": {}}, ["environment: DB_PASSWORD has another value"]),
        ({"volumes": [{"target": "/a", "source": "/x"}]}, {}, {"mounts": (ContainerMount("/y", "/b"),)},
         ["mount /a: none is now /x", "mount /b: /y is now none"]),
        ({"volumes": [{"target": "/a", "source": "named"}]}, {}, {"mounts": (ContainerMount("lab_named", "/a"),)},
         [OTHER]),
        ({"ports": [{"published": 80, "target": 8000}]}, {}, {}, ["ports: none is now 80:8000"]),
        ({"privileged": True}, {"HostConfig": {}}, {}, ["privileged: False is now True"]),
        ({"cap_add": ["SYS_NICE"]}, {"HostConfig": {"CapAdd": ["CAP_SYS_NICE"]}}, {},
         [OTHER]),
        ({"cap_add": ["IPC_LOCK", "SYS_NICE"]}, {"HostConfig": {}}, {}, ["cap_add: none is now IPC_LOCK, SYS_NICE"]),
        ({"network_mode": "host"}, {"HostConfig": {"NetworkMode": "lab_default"}}, {},
         ["on the host's network: False is now True"]),
        ({"pid": "host"}, {"HostConfig": {}}, {}, ["pid: none is now host"]),
        ("same", {}, {}, []),
        (None, {}, {}, ["docker compose config describes no service web"]),
    ],
)  # fmt: skip
def test_differences(world: World, described: Any, document: Any, runs: Any, lines: list[str]) -> None:
    start = world.start()
    digest = "same" if described == "same" else "other"
    engine: Any = SimpleNamespace(
        inspect=lambda _: document, image=lambda _: SimpleNamespace(env={"OF_IMAGE": "z"}, id="sha256:1")
    )
    compose: Any = SimpleNamespace(digests=lambda: {"web": digest}, service=lambda _: described)
    deployment = start.service.deployment.with_cached(engine=engine, compose=compose, image=engine.image(""))
    running = replace(RUNS, labels={CONFIG_HASH: "same"}, **runs)
    service = LiveService(deployment, "web")
    if described is None:
        with pytest.raises(ServiceError, match=lines[0]):
            differences(service, running)
        return
    assert list(differences(service, running)) == lines
    moved = differences(service, replace(running, image_id="sha256:2"))
    assert list(moved[1:]) == [line for line in lines if line != OTHER] and moved[0].startswith("image: ")


def test_compose_is_asked_once_for_containers_of_one_environment(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKEN", raising=False)
    asked: list[Any] = []

    def kept(deployment: Any, container: Container) -> Any:
        env = {"TOKEN": container.env.get("TOKEN", "")}

        def digests() -> dict[str, str]:
            asked.append(env)
            return {"web": "now"}

        return SimpleNamespace(compose=SimpleNamespace(env=env, digests=digests))

    monkeypatch.setattr("envgen.serve.differences.keep_moment", kept)
    there = [
        replace(RUNS, id="1", labels={CONFIG_HASH: "now"}),
        replace(RUNS, id="2", labels={CONFIG_HASH: "then"}),
        replace(RUNS, id="3", env={"TOKEN": "x"}, labels={CONFIG_HASH: "now"}),
        replace(RUNS, id="4", service="gone"),
    ]
    assert settings_differ(world.start().service.deployment, there) == {"1": False, "2": True, "3": False}
    assert len(asked) == 2


# Folders and volumes


@pytest.mark.parametrize(
    ("owner", "local", "volumes", "code", "made", "given"),
    [
        ("", True, {"v"}, 0, True, None),
        ("0:0", True, {"v"}, 0, True, None),
        ("1000", False, {"v"}, 0, False, "1000:0"),
        ("1000:1001", True, {"v"}, 0, True, "1000:1001"),
        ("1000:1001", True, set(), 0, True, None),
        ("1000:1001", True, {"v"}, 3, True, "could not be given to user 1000:1001: no way"),
    ],
)
def test_prepare(
    world: World, monkeypatch: pytest.MonkeyPatch, owner: str, local: bool, volumes: set[str], code: int, made: bool,
    given: str | None,
) -> None:  # fmt: skip
    ran: list[Any] = []

    def run_once(_image: str, words: list[str], **_: Any) -> Any:
        ran.append((words[4], words[6:]))
        return SimpleNamespace(code=code, stderr=b"first\nno way\n")

    engine: Any = SimpleNamespace(
        info=lambda: SimpleNamespace(local=local),
        run_once=run_once,
        volume=lambda name: name if name in volumes else None,
    )
    caches = {
        "a": ContainerMount(str(world.folder / "cache"), "/a"),
        "b": ContainerMount("v", "/b", "volume"),
    }
    service = world.start().service
    deployment = service.deployment.with_cached(engine=engine, caches=caches, image=SimpleNamespace(id="i"))
    monkeypatch.setattr(prepares, "create_volumes", lambda _: None)
    monkeypatch.setattr(prepares, "run_as", lambda *_: owner)
    if code:
        with pytest.raises(EngineError, match=given):
            prepares.prepare(LiveService(deployment, "web"))
    else:
        prepares.prepare(LiveService(deployment, "web"))
        assert ran == ([] if given is None else [(given, ["/b"])])
    assert (world.folder / "cache").is_dir() is made


def test_volumes_are_created_with_the_label_of_the_folder(world: World) -> None:
    created: list[Any] = []
    there: set[str] = set()
    document = {
        "volumes": {
            "one": {"name": "lab_one"},
            "two": {"name": "lab_two", "driver": "nfs", "driver_opts": {"o": "x"}},
            "foreign": {"name": "x", "external": True},
            "of_another": {"name": "lab_other"},
        }
    }
    used = {"volumes": [{"source": "one"}, {"source": "two"}, {"source": "foreign"}, {"source": "/a"}]}
    engine: Any = SimpleNamespace(
        volume=lambda name: name if name in there else None,
        create_volume=lambda name, labels, driver, options: created.append((name, driver, options)),
    )
    compose: Any = SimpleNamespace(service=lambda _: used, document=document)
    deployment = world.start().service.deployment.with_cached(
        engine=engine, compose=compose, caches={"c": ContainerMount("lab_one", "/c", "volume")}
    )
    prepares.create_volumes(LiveService(deployment, "web"))
    assert created == [("lab_one", "", None), ("lab_two", "nfs", {"o": "x"})]
    there |= {"lab_one", overlay_volume(world.profile)}
    prepares.create_volumes(LiveService(deployment, "web"))  # all that the profile has are there
    assert len(created) == 2
    there.discard(overlay_volume(world.profile))
    prepares.create_volumes(LiveService(deployment, "web"))
    assert [name for name, *_ in created[2:]] == ["lab_two"]
