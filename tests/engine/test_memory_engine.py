"""The guard of memory in real containers: what eats is ended in time, and what runs beside a service is seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from local import until
from projects import Project, docker, inner_pid, lean_base

from envgen.app.bundle import RECORD
from envgen.engine.client import connect
from envgen.engine.host import meminfo

pytestmark = pytest.mark.engine

NAME, GIB = "envgentestmemory", 1 << 30
MOST = 6 * GIB  # an eater stops there: what no guard ends must not take the machine of the test
EAT = (
    "import sys, time; rate, most = int(sys.argv[1]), int(sys.argv[2]); began = time.monotonic(); "
    "print('eating', flush=True); "
    "kept = [(bytearray(b'x') * (1 << 24), time.sleep(max(0, (n << 24) / rate - (time.monotonic() - began))))"
    " for n in range(most >> 24)]; time.sleep(1000)"
)
FILE = """
profiles:
  dev:
    base: {image: BASE}
    memory: {floor: 256MiB}
    mode: production
    compose: limits.yaml
    services:
      fast: {command: [python3, -c, EAT, "2147483648", "MOST"], HEALTH}
      slow: {command: [python3, -c, EAT, "524288000", "MOST"], HEALTH}
      bound: {command: [python3, -c, EAT, "104857600", "MOST"], HEALTH}
      bare: {command: [sh, -c, "BARE"], HEALTH}
      calm: {command: [sleep, "1000"]}
"""
BARE = (  # its image loses its Python; only without it does it eat
    "sleep 1; rm -rf /usr/lib/python3* /usr/local/lib/python3* $(readlink -f $(command -v python3)); "
    "command -v python3 || while sleep 0.1; do head -c 8m /dev/zero; done | tail"
)
HEALTH = "health: {http: /, interval: 1s, start_period: 300s}"
LIMITS = "services: {bound: {mem_limit: 512m}, bare: {mem_limit: 512m}}\n"


@pytest.fixture(scope="module")
def project(make_project: Callable[..., Project]) -> Iterator[Project]:
    base = lean_base(f"{NAME}-base")
    text = FILE
    for mark, value in (("HEALTH", HEALTH), ("EAT", f'"{EAT}"'), ("BARE", BARE), ("MOST", str(MOST)), ("BASE", base)):
        text = text.replace(mark, value)
    made = make_project(NAME, text)
    (made.root / "limits.yaml").write_text(LIMITS)
    made.envgen("build", "--unlocked")
    yield made
    docker("image", "rm", "-f", base, check=False)


def available() -> int:
    found = meminfo().get("MemAvailable")
    assert found is not None
    return found


@pytest.mark.parametrize("service", ["fast", "slow"])
def test_an_eater_is_ended_before_the_floor_is_gone(project: Project, service: str) -> None:
    floor = available() - 2 * GIB
    assert floor > MOST, "this test needs 8 GiB of free memory"
    said = project.envgen("up", service, code=5, env={"ENVGEN_MEMORY_FLOOR": str(floor)}).err
    assert "cause: the machine's memory ran low, and the guard in the container ended the service" in said
    assert "envgen: memory guard:" in said and "the floor is" in said and "ENVGEN_MEMORY_FLOOR=off" in said


def test_a_limit_of_the_container_is_a_floor_of_its_own(project: Project) -> None:
    said = project.envgen("up", "bound", code=5).err
    assert "the guard in the container ended the service" in said and "the floor is 0.0" in said


def test_it_acts_without_any_file_of_the_image(project: Project) -> None:
    """What it needs is in memory: an interpreter that is read from a disk comes too late on a machine that thrashes."""
    said = project.envgen("up", "bare", code=5).err
    assert "the guard in the container ended the service" in said


def test_what_runs_beside_a_service(project: Project) -> None:
    """The guard is not of the service's tree; the kernel would take the service first; a stop is heard at once."""
    project.envgen("up", "calm")
    try:
        engine = connect()
        (container,) = engine.containers(f"{NAME}-dev", "calm")
        found = engine.processes(container.id)
        (outer,) = [one for one in found if "memory-guard" in one.command and inner_pid(one.parent) == 1]
        (guard,) = [one for one in found if one.parent == outer.pid]
        (calm,) = [one for one in found if one.command == "sleep 1000"]
        assert "memory-guard" in guard.command and inner_pid(calm.parent) == 1
        scores = [Path(f"/proc/{one.pid}/oom_score_adj").read_text().strip() for one in (calm, guard)]
        assert scores == ["500", "0"]
        assert b"left " in engine.read_file(container.id, RECORD)
        docker("exec", container.id, "kill", "-9", str(inner_pid(guard.pid)))
        said = "envgen: memory guard: it was ended by signal 9: the service goes on without a guard"
        until(lambda: said in engine.logs(container.id))
        assert engine.container(container.id).running  # type: ignore[union-attr]
    finally:
        project.envgen("down")


def test_it_can_be_left_out(project: Project) -> None:
    project.envgen("up", "calm", env={"ENVGEN_MEMORY_FLOOR": "off"})
    try:
        assert "memory-guard" not in docker("top", f"{NAME}-dev-calm-1")
    finally:
        project.envgen("down")


def test_a_floor_above_all_memory_is_refused_before_the_start(project: Project) -> None:
    said = project.envgen("up", "calm", code=6, env={"ENVGEN_MEMORY_FLOOR": "900GiB"}).err
    assert "memory.floor keeps 900.0 GiB free, and" in said and "ENVGEN_MEMORY_FLOOR=off" in said
