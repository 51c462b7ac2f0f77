"""The base image's own start-up is kept. The base here is the stand-in of scripts/stand-in-base, which has the shape of
NVIDIA's image: whether NVIDIA's own scripts do their work in this place was not seen on NVIDIA's image."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from projects import Project, docker

pytestmark = pytest.mark.engine

NAME = "envgenteststartup"
FILE = """
profiles:
  dev:
    mode: production
    env: {OWN: "1"}
    services:
      one:
        command: [sleep, infinity]
"""
MARKS = (
    "ENVGEN_STAND_IN_ENTRYPOINT=ran",
    "_CUDA_COMPAT_STATUS=stand-in",
    "LD_LIBRARY_PATH=/usr/local/cuda/compat/lib.real",
)
SHOW = ["sh", "-c", "tr '\\0' '\\n' </proc/self/environ"]


@pytest.fixture(scope="module")
def started(make_project: Callable[..., Project]) -> Iterator[Project]:
    project = make_project(NAME, FILE)
    project.envgen("build")
    project.envgen("up", "one")
    yield project
    project.envgen("down", code=None)


def container() -> str:
    return docker("ps", "-q", "--filter", f"label=com.docker.compose.project={NAME}-dev")


def test_the_first_process_has_what_the_base_image_sets_up(started: Project) -> None:
    pid_1 = docker("exec", container(), "sh", "-c", "for p in /proc/[0-9]*; do tr '\\0' '\\n' <$p/environ; done")
    assert set(MARKS) <= set(pid_1.splitlines())
    command = docker("exec", container(), "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert "sleep infinity" in command


def test_what_is_executed_later_has_it_too(started: Project) -> None:
    lines = started.envgen("exec", "one", "--", *SHOW).out.splitlines()
    assert set(MARKS) <= set(lines)
    assert "OWN=1" in lines
    cleanup_hint = docker("exec", "-e", "LD_LIBRARY_PATH=/mine", container(), "envgen-env", *SHOW).splitlines()
    assert "ENVGEN_STAND_IN_ENTRYPOINT=ran" in cleanup_hint
    assert "LD_LIBRARY_PATH=/mine" in cleanup_hint
    assert next(line for line in lines if line.startswith("MAX_JOBS=")).removeprefix("MAX_JOBS=").isdigit()


def test_the_banner_is_not_on_the_commands_own_output(started: Project) -> None:
    assert docker("run", "--rm", f"{NAME}:dev", "echo", "words") == "words"


def test_without_an_entry_point_bash_env_is_read(started: Project) -> None:
    argv = ["--entrypoint", "/opt/envgen/bin/envgen-env", f"{NAME}:dev", *SHOW]
    assert set(MARKS[1:]) <= set(docker("run", "--rm", *argv).splitlines())


def test_another_user_and_a_read_only_root_can_start_it(started: Project) -> None:
    for options in (["--user", "1234:1234"], ["--read-only"]):
        found = docker("run", "--rm", *options, f"{NAME}:dev", *SHOW).splitlines()
        assert set(MARKS) <= set(found), options
