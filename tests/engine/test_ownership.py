"""Two copies of a project on one engine: nobody takes the other's containers or port."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from local import free_port
from projects import Project, docker

pytestmark = pytest.mark.engine

# Everything of one step: the base image is all that is needed.
NAME = "envgentestcopies"
FILE = """
profiles:
  dev:
    mode: development
    caches: {jit: {path: /jit}}
    services:
      web: {command: [sleep, infinity]}
      port: {command: [sleep, infinity], ports: ["127.0.0.1:PORT:8000"]}
"""


@pytest.fixture(scope="module")
def built(make_project: Callable[..., Project]) -> Project:
    """The image, for all of these tests: each begins with a folder of its own, and with nothing else on the engine."""
    port = free_port()
    made = make_project(NAME, FILE.replace("PORT", str(port)))
    (made.root / "port").write_text(str(port))
    made.envgen("build")
    return made


def clean() -> None:
    for container in docker("ps", "-aq", "--filter", f"name={NAME}-").split():
        docker("rm", "-f", container, check=False)
    for kind in ("network", "volume"):
        for one in docker(kind, "ls", "-q", "--filter", f"name={NAME}").split():
            docker(kind, "rm", one, check=False)
    docker("image", "rm", "-f", f"{NAME}-2:dev", check=False)


@pytest.fixture
def first(built: Project, tmp_path: Path) -> Iterator[Project]:
    clean()  # of what a run that was killed has left
    yield Project(shutil.copytree(built.root, tmp_path / "first"), NAME)
    clean()


def copy(project: Project, folder: str) -> Project:
    """A second clone, as `cp -r` makes it."""
    root = project.root.with_name(folder)
    shutil.copytree(project.root, root)
    return Project(root, project.name)


def shown(project: Project) -> list[str]:
    return [row["container"] for row in project.envgen("ps", "--json").json]


def containers(name: str) -> set[str]:
    return set(docker("ps", "-a", "--filter", f"name={name}-", "--format", "{{.Names}}").split())


def test_a_copy_with_its_own_name_runs_beside_the_first(first: Project) -> None:
    second = copy(first, "second")
    (second.root / "envgen.local.yaml").write_text(f"name: {first.name}-2\n")
    names = [f"{first.name}-dev-web-1", f"{first.name}-2-dev-web-1"]
    for project in (first, second):
        project.envgen("up", "--build", "web")
    assert shown(first) == names[:1] and shown(second) == names[1:]
    mounts = [docker("inspect", "-f", "{{range .Mounts}}{{.Name}} {{end}}", one).split() for one in names]
    assert mounts == [[f"{first.name}-dev-cache-jit"], [f"{first.name}-2-dev-cache-jit"]]
    assert f"{names[1]} removed" in second.envgen("down", "--volumes").out
    assert shown(first) == names[:1]
    # What is committed is the same in both.
    first.envgen("render")
    second.envgen("render")
    assert (first.root / "compose/dev.yaml").read_bytes() == (second.root / "compose/dev.yaml").read_bytes()


def test_a_clone_is_refused_and_takes_nothing(first: Project) -> None:
    second = copy(first, "second")
    first.envgen("up", "web")
    before = docker("inspect", "-f", "{{.State.StartedAt}}", f"{first.name}-dev-web-1")
    for words in (
        ("build",), ("up", "web"), ("up", "--build", "web"), ("down",), ("down", "--volumes"), ("exec", "web", "true"),
        ("restart", "web"), ("stop",), ("run", "true"), ("cache", "clear", "--all", "--yes"),
    ):  # fmt: skip
        done = second.envgen(*words, code=6)
        for folder in (first.root, second.root):
            assert str(folder) in done.err, (words, done.err)
    shown_there = second.envgen("ps", "--json")
    assert shown_there.json == [] and str(first.root) in shown_there.err
    assert str(first.root) in second.envgen("prune", "--dry-run").err
    assert docker("inspect", "-f", "{{.State.StartedAt}}", f"{first.name}-dev-web-1") == before
    # After its `down` the name is free.
    first.envgen("down")
    second.envgen("up", "--build", "web")
    refused = first.envgen("up", "web", code=6).err
    assert str(second.root) in refused
    subprocess.run(["sh", "-ec", refused.rpartition("to take its place: ")[2].strip()], check=True)
    first.envgen("up", "web")


def test_a_copy_keeps_the_volumes_of_the_first(first: Project) -> None:
    volume = f"{first.name}-dev-cache-jit"
    second = copy(first, "second")
    warned = first.envgen("up", "web").err
    assert "already exists" not in warned, "Compose takes a volume that envgen created for its own"
    docker("exec", f"{first.name}-dev-web-1", "touch", "/jit/compiled")
    first.envgen("down")
    dry = second.envgen("down", "--volumes", "--dry-run")
    assert dry.out == f"volume {volume} would stay: {first.root} created it (docker volume rm)\n"
    done = second.envgen("down", "--volumes", "--json", code=6)
    assert done.json == {
        "containers": [], "dry_run": False, "kept": {volume: str(first.root)}, "left": [], "volumes": [],
    }  # fmt: skip
    second.envgen("up", "--build", "web")  # shares the cache
    assert docker("exec", f"{first.name}-dev-web-1", "ls", "/jit") == "compiled"
    second.envgen("down", "--volumes", code=6)
    assert docker("volume", "ls", "-q", "--filter", f"name={volume}") == volume
    assert f"volume {volume} removed" in first.envgen("down", "--volumes").out
    assert docker("volume", "ls", "-q", "--filter", f"name={volume}") == ""


def test_a_volume_of_a_folder_that_moved_goes_with_it(first: Project) -> None:
    volume = f"{first.name}-dev-cache-jit"
    first.envgen("up", "web")
    first.envgen("down")
    moved = Project(first.root.rename(first.root.with_name("moved")), first.name)
    assert f"volume {volume} removed" in moved.envgen("down", "--volumes").out


def test_a_folder_that_moved_and_a_project_with_a_new_name(first: Project) -> None:
    """What runs is known where the folder is now; under a new name, one command ends what has the old one."""
    first.envgen("up", "web")
    moved = Project(first.root.rename(first.root.with_name("moved")), first.name)
    name = f"{first.name}-dev-web-1"
    assert shown(moved) == [name]
    assert moved.envgen("up", "web", "--json").json["already_running"] is True
    assert f"{name} stopped" in moved.envgen("stop").out
    moved.envgen("up", "--recreate")
    local = moved.root / "envgen.local.yaml"
    local.write_text(f"name: {first.name}-2\n")
    command = f"docker compose -p {first.name}-dev down"
    assert f"also running: {name} (this project's name before: {command})" in moved.envgen("ps").err
    assert command in moved.envgen("status").out
    assert f"taken by container {first.name}-dev-port-1 ({command})" in moved.envgen("up", "port", code=6).err
    subprocess.run(command.split(), check=True)
    assert containers(first.name) == set()


def test_a_folder_with_letters_in_a_locale_without(first: Project) -> None:
    moved = Project(first.root.rename(first.root.with_name("\u00fc")), first.name)
    moved.envgen("up", "web")
    env = {**os.environ, "LC_ALL": "POSIX"}  # for which Python itself takes UTF-8
    for verb in ("ps", "stop", "down"):
        argv = [sys.executable, "-m", "envgen", verb]
        done = subprocess.run(argv, cwd=moved.root, env=env, capture_output=True, check=False, timeout=300)
        assert done.returncode == 0 and b"web" in done.stdout, done
    assert containers(first.name) == set()


def test_two_at_once(first: Project) -> None:
    """One user finds the service running in both terminals."""
    children = [first.start("up", "web") for _ in range(2)]
    texts = [child.communicate(timeout=300)[1] for child in children]
    assert [child.returncode for child in children] == [0, 0], texts
    assert shown(first) == [f"{first.name}-dev-web-1"]


def test_what_plain_compose_started_in_a_copy_holds_the_name(first: Project) -> None:
    second = copy(first, "second")
    second.envgen("render")
    docker("compose", "-f", str(second.root / "compose/dev.yaml"), "up", "-d", "--no-build", "web")
    assert str(second.root) in first.envgen("up", "web", code=6).err
    docker("compose", "-p", f"{first.name}-dev", "down")
    first.envgen("up", "web")


UNCHECKED = """
import sys
from envgen.serve import preflight
preflight.ports = lambda *_: iter(())
from envgen.__main__ import main
sys.exit(main())
"""


def test_a_port_that_is_taken_after_the_check(first: Project) -> None:
    """The check is left out: what it would miss is the same."""
    port = int((first.root / "port").read_text())
    with socket.create_server(("127.0.0.1", port)):
        done = subprocess.run(
            [sys.executable, "-c", UNCHECKED, "up", "port"], cwd=first.root, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=300, check=False,
        )  # fmt: skip
        checked = first.envgen("up", "port", code=6)
    assert done.returncode == 5 and "cause: a port is in use" in done.stderr, done.stderr
    assert containers(first.name) == set()
    hint = next(line for line in checked.err.splitlines() if "--set" in line)
    override = hint.partition("--set ")[2].strip().strip('"')
    assert "'127.0.0.1:" in override and f":{port}:" not in override
    assert "127.0.0.1:" in first.envgen("up", "port", "--set", override).out
