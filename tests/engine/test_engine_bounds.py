"""A real engine whose socket goes away in the middle, and a service that floods its log: every verb ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_proxy import Proxy
from projects import Project, docker

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

TIME = 180  # seconds; on an idle machine each takes less than 10, and with no limit it takes for ever

SLOW = """\
profiles:
  dev:
    mode: development
    services:
      web:
        command: [sh, -c, "while :; do seq 1 1000; sleep 0.1; done"]
        ports: ["127.0.0.1:PORT:8000"]
        health: {http: /, interval: 1s, start_period: 600s}
        ready: {timeout: TIMEOUT}
        restart: "no"
"""


@pytest.fixture
def slow(make_project: Callable[..., Project], free_port: int) -> Callable[[str, str], Project]:
    def make(name: str, timeout: str) -> Project:
        text = SLOW.replace("PORT", str(free_port)).replace("TIMEOUT", timeout)
        return make_project(name, text)

    return make


def test_an_engine_that_is_killed_while_up_waits(slow: Callable[[str, str], Project], tmp_path: Path) -> None:
    made, engine = slow("envgentestcut", "300s"), Proxy(tmp_path / "s")
    made.envgen("build")
    with made.start("up", "web", env={"DOCKER_HOST": engine.host}) as child:
        assert child.stderr
        while "up web" not in (line := child.stderr.readline()):
            assert line, "it ended before the service ran"
        while not docker("ps", "-q", "--filter", "label=com.docker.compose.project=envgentestcut-dev"):
            time.sleep(0.2)
        time.sleep(2)
        engine.cut()
        printed = child.communicate(timeout=TIME)[1]
    assert child.returncode == 3, printed
    assert "the Docker Engine at" in printed and "internal error" not in printed


def test_an_engine_that_is_killed_in_a_build(make_project: Callable[..., Project], tmp_path: Path) -> None:
    text = SLOW.replace("PORT", "1").replace("TIMEOUT", "9s")
    made, engine = make_project("envgentestcut2", text + "    apt: {build: [hello, cowsay]}\n"), Proxy(tmp_path / "s")
    with made.start("build", "--no-cache", env={"DOCKER_HOST": engine.host}) as child:
        assert child.stderr
        while "RUN" not in (line := child.stderr.readline()):
            assert line, "it ended with its first step"
        engine.cut()
        printed = child.communicate(timeout=TIME)[1]
    assert child.returncode in (3, 4), printed
    assert "internal error" not in printed


def test_a_service_that_floods_its_log_is_given_up_in_time(make_project: Callable[..., Project]) -> None:
    """Each look reads what is new and ends; of a line of five million characters the beginning is shown."""
    flood = "head -c 5000000 /dev/zero | tr '\\\\0' x; echo; yes $(head -c 500 /dev/zero | tr '\\\\0' y)"
    text = SLOW.replace("while :; do seq 1 1000; sleep 0.1; done", flood)
    text = text.replace('        ports: ["127.0.0.1:PORT:8000"]\n', "").replace("TIMEOUT", "5s")
    made = make_project("envgentestchatty", text)
    made.envgen("build")
    with made.start("up", "web") as child:
        printed = child.communicate(timeout=5 + TIME)[1]
    assert child.returncode == 5 and "not ready in time" in printed, printed[:5000]
    assert max(map(len, printed.splitlines())) < 2500
