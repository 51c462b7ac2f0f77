"""max_jobs: auto, from given texts of /proc and cgroups."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envgen.engine.base import EngineInfo
from envgen.engine.jobs import GIB, Capacity, capacity, decide, less, mem_available

MEMINFO = (
    "MemTotal:       125829120 kB\nMemFree:         1048576 kB\nMemAvailable:   104857600 kB\nCached:  2097152 kB\n"
)


def info(cpus: int = 20, memory: int = 120 * GIB, endpoint: str = "unix:///var/run/docker.sock") -> EngineInfo:
    return EngineInfo("28.0", "1.48", "arm64", (), (), "/var/lib/docker", memory, cpus, endpoint)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(20)), raising=False)
    write(tmp_path, "proc/meminfo", MEMINFO)
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def test_memory_decides_on_a_machine_with_many_cores(machine: Path) -> None:
    jobs = decide(None, 8 * GIB, capacity(info(), root=machine))
    assert jobs.count == 12
    assert jobs.sentence == "MAX_JOBS=12 = the smaller of 20 cores and 100.0 GiB available / 8 GiB a job = 12"


def test_cores_decide_on_a_machine_with_much_memory(machine: Path) -> None:
    jobs = decide(None, 1 * GIB, capacity(info(), root=machine))
    assert jobs.count == 20 and "100.0 GiB available / 1 GiB a job = 100" in jobs.sentence


def test_at_least_one(machine: Path) -> None:
    jobs = decide(None, 500 * GIB, capacity(info(), root=machine))
    assert jobs.count == 1 and jobs.sentence.endswith("= 0, and at least 1")


def test_a_given_number_is_taken_as_it_is() -> None:
    assert decide(7, GIB, Capacity(1, 1)).count == 7


def test_the_limit_of_our_own_cgroup_version_2(machine: Path) -> None:
    write(machine, "proc/self/cgroup", "0::/box/inner\n")
    write(machine, "sys/fs/cgroup/cgroup.controllers", "cpu memory\n")
    write(machine, "sys/fs/cgroup/box/memory.max", f"{40 * GIB}\n")
    write(machine, "sys/fs/cgroup/box/memory.current", f"{20 * GIB}\n")
    write(machine, "sys/fs/cgroup/box/memory.stat", f"anon 5\ninactive_file {4 * GIB}\n")
    write(machine, "sys/fs/cgroup/box/inner/memory.max", "max\n")
    write(machine, "sys/fs/cgroup/box/inner/memory.current", "5\n")
    write(machine, "sys/fs/cgroup/box/cpu.max", "350000 100000\n")
    found = capacity(info(), root=machine)
    assert (found.cores, found.memory) == (3, 24 * GIB)
    assert "3 cores (by this container's limit)" in decide(None, GIB, found).sentence
    assert "24.0 GiB free below this container's limit" in decide(None, GIB, found).sentence


def test_the_limit_of_our_own_cgroup_version_1(machine: Path) -> None:
    write(machine, "proc/self/cgroup", "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/\n")
    write(machine, "sys/fs/cgroup/memory/memory.limit_in_bytes", f"{16 * GIB}\n")  # a namespace: no /docker/abc here
    write(machine, "sys/fs/cgroup/memory/memory.usage_in_bytes", f"{6 * GIB}\n")
    write(machine, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    write(machine, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    found = capacity(info(), root=machine)
    assert (found.cores, found.memory) == (20, 10 * GIB)


def test_no_limit_in_version_1_is_a_huge_number(machine: Path) -> None:
    write(machine, "proc/self/cgroup", "5:memory:/\n")
    write(machine, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    write(machine, "sys/fs/cgroup/memory/memory.usage_in_bytes", "1\n")
    assert capacity(info(), root=machine).memory == 100 * GIB


def test_an_engine_in_a_smaller_virtual_machine_decides(machine: Path) -> None:
    found = capacity(info(4, 8 * GIB), root=machine)
    assert (found.cores, found.memory) == (4, 8 * GIB)
    assert "4 cores (of the engine's machine) and 8.0 GiB in the engine's machine" in decide(None, GIB, found).sentence


def test_a_remote_engine_is_asked_and_this_machine_is_not(machine: Path) -> None:
    found = capacity(info(64, 512 * GIB, "ssh://build@far"), root=machine)
    assert (found.cores, found.memory) == (64, 512 * GIB)


def test_nothing_known_about_memory(tmp_path: Path) -> None:
    jobs = decide(None, GIB, capacity(None, root=tmp_path))
    assert jobs.count >= 1 and "not known" in jobs.sentence


def test_kernels_without_memavailable() -> None:
    assert mem_available("MemFree: 10 kB\nCached: 5 kB\n") == 15 << 10
    assert mem_available("nothing of the kind") is None


@given(st.none() | st.integers(1, 9999), st.integers(0, 1 << 45), st.integers(0, 512), st.integers(0, 1 << 45))
def test_always_at_least_one_and_never_more_than_memory_allows(
    wanted: int | None, per_job: int, cores: int, memory: int
) -> None:
    jobs = decide(wanted, per_job, Capacity(cores, memory))
    assert jobs.count >= 1 and str(jobs.count) in jobs.sentence
    if wanted is None and memory and per_job and jobs.count > 1:
        assert jobs.count <= cores and jobs.count * per_job <= memory


def test_a_model_takes_its_memory_from_the_compilers() -> None:
    """A GB10: 20 cores, 116 GiB available, and a server that needs 84 GiB for itself."""
    spark = Capacity(20, 116 * GIB)
    assert decide(None, 8 * GIB, spark).count == 14
    assert decide(None, 8 * GIB, less(spark, 84 * GIB)).count == 4
    assert decide(None, 8 * GIB, less(spark, 200 * GIB)).count == 1
    assert less(Capacity(20, 0), GIB) == Capacity(20, 0)
