"""Gates of several containers on one cache: one budget, one scheduler, nothing left of a killed container."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from local import until
from projects import BASE, docker

from envgen.engine.client import Engine

GATE = Path(__file__).parents[2] / "docker/runtime/bin/compile-gate"
# A compiler that notes that it has started, and ends when it is told to.
COMPILER = """\
#!/usr/bin/env -S python3 -I -S
import os, sys, time
name = sys.argv[sys.argv.index("-c") + 1]
open("/cache/started-" + name, "w").close()
while not os.path.exists("/cache/release-" + name):
    time.sleep(0.1)
"""


class Lab:
    """A volume, and containers that have it as the cache of their gates, with a budget of 1 GiB for all."""

    def __init__(self, folder: Path) -> None:
        self.volume = f"envgentestgate{uuid.uuid4().hex[:8]}"
        self.compiler = folder / "compiler"
        self.compiler.write_text(COMPILER)
        self.compiler.chmod(0o755)
        self.containers: list[str] = []

    def container(self) -> str:
        found = docker(
            "run", "-d", "--init", "--network", "none", "-v", f"{self.volume}:/cache", "-e", "ENVGEN_GATE_DIR=/cache",
            "-e", "ENVGEN_GATE_MEMORY=1", "-e", "ENVGEN_GATE_CORES=8", "--entrypoint", "sleep", BASE, "infinity",
        )  # fmt: skip
        self.containers.append(found)
        docker("cp", str(GATE), f"{found}:/compile-gate")
        docker("cp", str(self.compiler), f"{found}:/compiler")
        return found

    def compile(self, container: str, name: str, mib: int) -> None:
        """Start a compiler behind the gate; it is expected to need this much, as if that had been learned."""
        learned = "/cache/learned/compiler/module"
        docker("exec", container, "sh", "-c", f"mkdir -p {learned} && echo '{mib} 60' > {learned}/{name}.o")
        docker("exec", "-d", container, "/compile-gate", "/compiler", "-c", name, "-o", f"module/{name}.o")

    def sh(self, container: str, text: str) -> str:
        return docker("exec", container, "sh", "-c", text)

    def started(self, container: str) -> list[str]:
        return [name[8:] for name in self.sh(container, "ls /cache").split() if name.startswith("started-")]

    def status(self, container: str) -> tuple[int, int]:
        """How many run and how many wait, as this container sees it."""
        found: dict[str, Any] = json.loads(docker("exec", container, "/compile-gate", "status", "--json"))
        return found["running"], found["waiting"]

    def remove(self) -> None:
        for container in self.containers:
            docker("rm", "-f", container, check=False)
        docker("volume", "rm", "-f", self.volume, check=False)


@pytest.fixture
def lab(engine: Engine, tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    try:
        yield made
    finally:
        made.remove()


def test_two_containers_share_one_budget_and_a_killed_one_gives_its_part_back(lab: Lab) -> None:
    first, second = lab.container(), lab.container()
    lab.compile(first, "a", 600)
    until(lambda: lab.started(second) == ["a"])
    lab.compile(second, "b", 600)
    until(lambda: lab.status(second) == (1, 1))
    lab.compile(second, "c", 200)  # fits beside
    until(lambda: lab.started(first) == ["a", "c"])
    until(lambda: lab.status(first) == lab.status(second) == (2, 1))

    docker("kill", first)  # the scheduler, which the first gate has started, and a compiler that holds 600 MiB
    until(lambda: lab.started(second) == ["a", "b", "c"])
    until(lambda: lab.status(second) == (2, 0))
    lab.sh(second, "touch /cache/release-b /cache/release-c")
    until(lambda: lab.sh(second, "ls /cache/gate") == "door")
