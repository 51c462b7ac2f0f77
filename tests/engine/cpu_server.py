"""One real vLLM for CPUs for the whole session: the server of `scripts/quickstart cpu`.

The script runs with the envgen of this environment, as on a machine with settings of its own (LOCAL). Before it stops
its server it is held up until ``finish``, so that one lock, one build and one start serve all these tests. A test that
kills the server brings it back with ``restore``.
"""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from projects import Project, docker, forget

from envgen.engine.client import Engine

CHECKOUT = Path(__file__).parents[2]
NAME = "quickstart"


def free_port() -> int:
    """A port of this machine's loopback on which nothing listens; none of those that it hands out by itself."""
    for port in random.sample(range(20000, 30000), 100):
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port between 20000 and 30000 is free")


PORT = free_port()  # several runs at once on one machine, each with an engine of its own, don't meet
# Each process of vLLM imports all of it. No own process for the only worker, and what vLLM learns of the model's class
# in one more process it keeps beside the model, for the next container. One thread, and no core of its own: two wait
# for each other at each step, where something else runs too. A health check every two seconds would take a minute of a
# core. In bfloat16, vLLM 0.30 ends with an illegal instruction on machines that show AMX and don't let a guest use it.
LOCAL: dict[str, Any] = {
    "env": {
        "VLLM_ENABLE_V1_MULTIPROCESSING": 0, "VLLM_CACHE_ROOT": "/models/.vllm", "OMP_NUM_THREADS": 1,
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    },
    "services": {
        "serve": {
            "ports": [f"127.0.0.1:{PORT}:8000"],
            "health": {"interval": "60s"},
            "args": {"dtype": "float32"},
        }
    },
}  # fmt: skip
PROGRAM = """\
#!/bin/sh
case "$*" in
  "lock -p cpu") cp {folder}/local.yaml envgen.local.yaml ;;
  "down -p cpu") pwd >{folder}/held.new && mv {folder}/held.new {folder}/held
    until [ -e {folder}/on ] || [ ! -d {folder} ]; do sleep 0.2; done ;;
esac
exec {python} -m envgen "$@"
"""


@dataclass(frozen=True)
class CpuServer:
    """A served tiny model: ``project`` runs envgen commands beside its files; ``profile`` is always `cpu`."""

    project: Project
    port: int = PORT
    profile: str = "cpu"
    service: str = "serve"
    model: str = "tiny"
    max_model_len: int = 512

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def image(self) -> str:
        return f"{self.project.name}:{self.profile}"

    @property
    def container(self) -> str:
        """The id of the running container; empty when there is none."""
        return docker(
            "ps", "-q", "--no-trunc", "--filter", f"name=^{self.project.name}-{self.profile}-{self.service}-1$"
        )

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False

    def restore(self) -> None:
        """Start the service again unless it answers; for tests that killed it."""
        if not self.answers():
            self.project.envgen("up", self.service, "-p", self.profile)

    def write_local(self, services: dict[str, Any] | None = None, **profiles: dict[str, Any]) -> None:
        """The local file: more services of this profile, other profiles, and what is there all the time."""
        own = {**LOCAL, "services": {**LOCAL["services"], **(services or {})}}
        (self.project.root / "envgen.local.yaml").write_text(yaml.safe_dump({"profiles": {"cpu": own, **profiles}}))


class Quickstart:
    """The script under way: ``reach`` waits for its server, ``finish`` for its end."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "log"
        (folder / "local.yaml").write_text(yaml.safe_dump({"profiles": {"cpu": LOCAL}}))
        program = folder / "envgen"
        program.write_text(PROGRAM.format(folder=shlex.quote(str(folder)), python=shlex.quote(sys.executable)))
        program.chmod(0o755)
        forget(f"{NAME}-cpu")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [CHECKOUT / "scripts" / "quickstart", "cpu", "--envgen", program],
                env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""},
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip

    @property
    def printed(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def reach(self) -> CpuServer:
        while not (self.folder / "held").exists():
            assert self.process.poll() is None, self.printed[-6000:]
            time.sleep(0.2)
        root = Path((self.folder / "held").read_text().strip())
        return CpuServer(Project(root, NAME))

    def finish(self) -> int:
        """Let it stop its server and clean up; its exit code."""
        with contextlib.suppress(FileNotFoundError):  # after Ctrl-C, pytest removes its folders before it comes here
            (self.folder / "on").touch()
        return self.process.wait(600)


@pytest.fixture(scope="session")
def quickstart(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Quickstart]:
    """Its other half is tests/engine/test_quickstart_demo.py, which shares nothing with the tests of the server."""
    made = Quickstart(tmp_path_factory.mktemp("quickstart"))
    yield made
    made.finish()


@pytest.fixture(scope="session")
def cpu_server(quickstart: Quickstart) -> CpuServer:
    """The running server. Its start counts to the first test that asks for it."""
    return quickstart.reach()
