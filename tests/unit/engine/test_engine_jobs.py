"""What compilers can have on this machine, from given texts of /proc and cgroups."""

from __future__ import annotations

from pathlib import Path

import pytest

from envgen.engine.base import EngineInfo
from envgen.engine.jobs import GIB, Capacity, capacity, mem_available, sentence

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


def test_the_sentence_promises_nothing_that_the_gate_does_not_do(machine: Path) -> None:
    found = capacity(info(), root=machine)
    start = "compilers: each starts when the memory that it needs is free (100.0 GiB available now); at most "
    assert sentence(None, found) == start + "20 at once, the cores"
    assert sentence(7, found) == start + "7 at once, as given"
    assert sentence(None, Capacity(0, 0)) == "compilers: each starts when the memory that it needs is free"


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
    assert "24.0 GiB free below this container's limit now" in sentence(None, found)
    assert sentence(None, found).endswith("at most 3 at once, the cores by this container's limit")


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
    assert sentence(None, found).endswith("at most 4 at once, the cores of the engine's machine")


def test_a_remote_engine_is_asked_and_this_machine_is_not(machine: Path) -> None:
    found = capacity(info(64, 512 * GIB, "ssh://build@far"), root=machine)
    assert (found.cores, found.memory) == (64, 512 * GIB)


def test_nothing_known_about_memory(tmp_path: Path) -> None:
    assert capacity(None, root=tmp_path).memory == 0


def test_kernels_without_memavailable() -> None:
    assert mem_available("MemFree: 10 kB\nCached: 5 kB\n") == 15 << 10
    assert mem_available("nothing of the kind") is None
