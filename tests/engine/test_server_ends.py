"""How a real vLLM ends, and what `ps`, `status`, `doctor`, `explain` and Docker's restart make of it.

The table of docs/serving.md (When a server ends), row by row, with one container. One of its starts loads the model;
the others end while vLLM starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from cpu_server import CpuServer, free_port
from local import until
from projects import docker, inner_pid

from envgen.engine.client import Engine
from envgen.engine.values import Container
from envgen.text import instant

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

NAME = "ends"


def service(port: int) -> dict[str, Any]:
    """A server whose engine is a process of its own, and its own worker, as on one GPU."""
    return {
        "command": ["python3", "-m", "vllm.entrypoints.openai.api_server"],
        "args": {
            "model": "/models/tiny", "served-model-name": "tiny", "port": 8000, "dtype": "bfloat16",
            "max-model-len": 128, "enforce-eager": True, "kv-cache-memory-bytes": 64 << 20,
        },
        "ports": [f"127.0.0.1:{port}:8000"],
        "ready": {"port": 8000, "timeout": "600s"},  # the model is the one that it lists
        "restart": "on-failure:1",
    }  # fmt: skip


@dataclass(frozen=True)
class Ends:
    """The server of these tests."""

    server: CpuServer
    engine: Engine

    @property
    def name(self) -> str:
        return f"{self.server.project.name}-cpu-{NAME}-1"

    @property
    def container(self) -> Container:
        found = self.engine.container(self.name)
        assert found is not None
        return found

    def kill(self, title: str) -> None:
        """SIGKILL to the process whose title contains ``title``."""
        (pid,) = [one.pid for one in self.engine.processes(self.container.id) if title in one.command]
        docker("exec", self.name, "sh", "-c", f"kill -KILL {inner_pid(pid)}")

    def until(self, true: Callable[[Container], bool]) -> None:
        until(lambda: true(self.container), lambda: f"{self.container.state}\n{self.log[-3000:]}", 240)

    @property
    def log(self) -> str:
        """The log of its newest start."""
        return self.engine.logs(self.container.id, tail=3000, since=instant(self.container.started_at))

    def loads(self) -> None:
        """Wait until vLLM of the newest start has read its arguments, and has loaded nothing yet."""
        self.until(lambda _: "non-default args" in self.log)

    def said(self, text: str, *, failed: bool, case: str, rule: str = "") -> None:
        """All commands say the same of it: the exit code, the words, doctor's finding, and the rule of `explain`."""
        project, code = self.server.project, 1 if failed else 0
        shown = project.envgen("ps", "-p", "cpu", code=code).out
        (line,) = [one for one in shown.splitlines() if one[:4] in ("FAIL", "note")] or [""]
        assert text in line and line.startswith("FAIL") is failed
        (row,) = [one for one in project.envgen("ps", "-p", "cpu", "--json", code=code).json if one["service"] == NAME]
        assert row["ended"]["failed"] is failed and row["ended"]["rule"] == rule
        assert line in project.envgen("status", "-p", "cpu", code=code).out
        # The other server of the profile runs: doctor must not look at that one alone.
        found = project.envgen("doctor", "-p", "cpu", "--json", code=code).json["findings"]
        mine = [one for one in found if NAME in one["title"] and one["evidence"].get("case", "") == case]
        assert mine and (mine[0]["severity"] == "error") is failed
        if failed:
            assert self.server.project.envgen("explain", NAME, "-p", "cpu", "--json", code=1).json


@pytest.fixture(scope="module")
def ends(cpu_server: CpuServer, engine: Engine) -> Iterator[Ends]:
    cpu_server.write_local({NAME: service(free_port())})
    cpu_server.restore()
    found = Ends(cpu_server, engine)
    yield found
    docker("rm", "-f", found.name, check=False)
    cpu_server.write_local()


def test_each_end_of_a_real_server(ends: Ends) -> None:
    up = ends.server.project.envgen("up", NAME, "-p", "cpu").out
    assert f"{NAME} is ready after" in up and "completed 'The capital of France is'" in up  # without ready.model

    # Killed: its engine. vLLM ends with 0, and Docker starts it again.
    ends.kill("EngineCor")
    ends.until(lambda one: one.restarts == 1 and one.running)
    ends.said(f"{NAME} was restarted 1 time by Docker", failed=False, case="restarted", rule="engine_dead")

    # Its API server, and Docker has started it often enough.
    ends.loads()
    found = ends.engine.processes(ends.container.id)
    (server,) = [one for one in found if inner_pid(one.parent) == 1]
    children = [inner_pid(one.pid) for one in found if one.parent == server.pid]
    docker("exec", ends.name, "sh", "-c", f"kill -KILL {children[0]}")
    ends.until(lambda one: one.state == "exited")
    assert ends.container.exit_code == 137
    ends.said("(SIGKILL, not for its memory limit)", failed=True, case="ended", rule="killed")

    # `docker stop`, and `docker kill`: neither is started again.
    docker("start", ends.name)
    ends.loads()
    docker("stop", ends.name)
    ends.said("", failed=False, case="")
    docker("start", ends.name)
    docker("kill", ends.name)
    ends.said("(SIGKILL, not for its memory limit)", failed=True, case="ended", rule="killed")

    # Its memory limit.
    docker("update", "--restart", "no", "--memory", "300m", "--memory-swap", "300m", ends.name)
    docker("start", ends.name)
    ends.until(lambda one: one.state == "exited")
    assert ends.container.oom_killed
    ends.said(f"{NAME} was killed at", failed=True, case="ended", rule="server_memory")
    assert "because memory ran out" in ends.server.project.envgen("ps", "-p", "cpu", code=1).out
