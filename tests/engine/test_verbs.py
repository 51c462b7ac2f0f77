"""The verbs that users of Compose know, on real containers of one small project."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest
from projects import Project, docker, interrupt

pytestmark = pytest.mark.engine

NAME = "envgentestverbs"
FILE = """
profiles:
  dev:
    mode: development
    env: {LEVEL: "1"}
    secrets: [ENVGENTEST_A, ENVGENTEST_B, ENVGENTEST_C]
    caches: {things: {path: /things}}
    services:
      one: {command: [sh, -c, "echo one is up; exec sleep 1000"]}
      two: {command: [sh, -c, "echo two is up; exec sleep 1000"]}
"""


@pytest.fixture(scope="module")
def project(make_project: Callable[..., Project]) -> Project:
    return make_project(NAME, FILE)


MINE = f"label=com.docker.compose.project={NAME}-dev"


@pytest.fixture(autouse=True)
def nothing_left(project: Project) -> Iterator[None]:
    yield
    if found := docker("ps", "-aq", "--filter", MINE).split():
        docker("rm", "-f", *found)


def states() -> dict[str, str]:
    rows = docker("ps", "-a", "--filter", MINE, "--format", '{{.Label "com.docker.compose.service"}} {{.State}}')
    return dict(row.split() for row in rows.splitlines())


def test_a_project_is_built_and_started_stopped_and_started_again(project: Project) -> None:
    done = project.envgen("up", "--build")
    assert "one is running" in done.out and "two is running" in done.out and "built" in done.err
    assert states() == {"one": "running", "two": "running"}
    assert [one["already_running"] for one in project.envgen("up", "one", "two", "--json").json] == [True, True]
    assert " differ " in project.envgen("status", "--set", "env.LEVEL=3").out
    assert "stopped" in project.envgen("stop", "two").out
    assert states() == {"one": "running", "two": "exited"}
    project.envgen("up", "two")
    assert states() == {"one": "running", "two": "running"}
    project.envgen("stop", "two")
    assert "two is running" in project.envgen("restart", "two").out
    assert states() == {"one": "running", "two": "running"}
    docker("pause", f"{NAME}-dev-two-1")
    assert f"two is paused\n    hint: docker unpause {NAME}-dev-two-1\n" in project.envgen("up", "two", code=6).err
    docker("unpause", f"{NAME}-dev-two-1")
    assert project.envgen("up", "two", "--json").json["already_running"] is True
    failed = project.envgen("restart", "one", "--json", "-p", "nope", code=2).json
    assert "'nope'" in failed["error"] and failed["code"] == 2
    assert f"{NAME}-dev-one-1 would be removed" in project.envgen("down", "one", "--dry-run").out
    project.envgen("down", "one")
    assert states() == {"two": "running"}


def test_docker_options_inside_a_container(project: Project) -> None:
    project.envgen("up", "--build", "one")
    command = ("-u", "nobody", "-w", "/tmp", "-e", "A=b", "one", "sh", "-c", "id -un; pwd; echo $A")
    shown = project.envgen("exec", "-t", *command)
    assert shown.out == "nobody\n/tmp\nb\n"
    (row,) = project.envgen("ps", "--json").json
    assert docker("inspect", "-f", "{{.Name}}", row["id"]) == f"/{NAME}-dev-one-1"
    screen = project.envgen("status").out
    assert f"{NAME}-dev-one-1" in screen and ", current, built" in screen, screen
    (line,) = project.envgen("logs", "-t", "--tail", "1", "--since", "1h", "one").out.splitlines()
    assert line.startswith("20") and line.endswith(" one is up")


def test_run_has_what_the_service_has_and_leaves_nothing(project: Project) -> None:
    project.envgen("up", "--build", "two", "--no-wait")
    script = "echo $LEVEL-$MORE; mountpoint -q /things && echo mounted; exit 7"
    done = project.envgen("run", "-e", "MORE=2", "two", "--", "sh", "-c", script, code=7)
    assert done.out.splitlines()[-2:] == ["1-2", "mounted"]
    assert docker("ps", "-a", "--filter", MINE, "--format", "{{.Names}}") == f"{NAME}-dev-two-1"
    older = project.envgen("run", "--set", "env.LEVEL=3", "--set", "python_path=[/x]", "--", "true", code=6)
    assert "differs from the profile" in older.err and "envgen build --profile dev" in older.err


def test_a_one_off_is_not_the_service_and_gets_ctrl_c(project: Project) -> None:
    project.envgen("build")
    child = project.start("run", "one", "sh", "-c", "trap 'exit 9' INT; echo begun; while :; do sleep 0.1; done")
    try:
        assert child.stdout is not None
        while "begun" not in child.stdout.readline():
            assert child.poll() is None
        (row,) = project.envgen("ps", "-a", "--json").json
        assert row["one_off"] is True and project.envgen("ps", "--json").json == []
        assert (
            "one is not running\n    hint: envgen up one --profile dev"
            in project.envgen("exec", "one", "true", code=1).err
        )
        os.killpg(child.pid, signal.SIGINT)  # as a terminal does it: the whole group
        assert child.wait(60) == 9
    finally:
        interrupt(child)
    assert states() == {}


def test_secrets_come_from_the_env_file(project: Project) -> None:
    env_file = project.root / ".env"
    env_file.write_text("export ENVGENTEST_A='two words$'  # mine\nENVGENTEST_B=from-the-file\nLEVEL=9\n")
    try:
        shell = {"ENVGENTEST_B": "from-the-shell"}
        done = project.envgen("up", "--build", "one", "--no-wait", env=shell)
        assert "not set in this terminal or in .env: ENVGENTEST_C" in done.err
        show = "echo ${#ENVGENTEST_A} ${#ENVGENTEST_B} $LEVEL"  # lengths: envgen prints no secret
        assert project.envgen("exec", "one", "sh", "-c", show).out == "10 14 1\n"
        assert project.envgen("up", "one", "--no-wait", "--json", env=shell).json["already_running"] is True
        env_file.write_text('ENVGENTEST_C="correct horse\n')
        broken = project.envgen("ps")
        assert "Compose cannot read" in broken.err and "horse" not in broken.err + broken.out
    finally:
        env_file.unlink()
