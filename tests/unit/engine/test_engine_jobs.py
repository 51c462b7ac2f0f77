"""What compilers can have on this machine, from given texts of /proc."""

from __future__ import annotations

from pathlib import Path

import pytest

from envgen.engine.host import compilers, mem_available
from envgen.engine.values import EngineInfo
from envgen.text import GIB

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
    waits = "each waits for free memory (100.0 GiB available now)"
    assert compilers(None, info(), root=machine) == f"compilers: up to 20 (cores); {waits}"
    assert compilers(7, info(), root=machine) == f"compilers: up to 7 (as given); {waits}"
    unknown = compilers(None, info(0, 0, "ssh://build@far"), root=machine)
    assert unknown == "compilers: each waits for free memory"


def test_an_engine_in_a_smaller_virtual_machine_decides(machine: Path) -> None:
    found = compilers(None, info(4, 8 * GIB), root=machine)
    most = "compilers: up to 4 (cores of the engine's machine); "
    assert found == f"{most}each waits for free memory (8.0 GiB in the engine's machine now)"


def test_a_remote_engine_is_asked_and_this_machine_is_not(machine: Path) -> None:
    found = compilers(None, info(64, 512 * GIB, "ssh://build@far"), root=machine)
    assert "512.0 GiB" in found and "up to 64" in found


def test_nothing_known_about_memory(tmp_path: Path) -> None:
    assert "GiB" not in compilers(None, None, root=tmp_path)


def test_unknown_memory() -> None:
    assert mem_available("nothing of the kind") is None
