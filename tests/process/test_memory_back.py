"""Who holds this machine's memory: a real process, and a GB10's driver from recorded figures."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Timer
from types import SimpleNamespace
from typing import Any

import pytest
from local import until

from envgen.app import lifecycle
from envgen.engine import box
from envgen.engine.host import meminfo
from envgen.serve import memory

GIB = 1 << 30
GB10 = "NVIDIA GB10, 4.38, 208, 3003, 38, 0, 0x0000000000000001"
HOLDS = "import sys; held = b'x' * (4 << 30); print(1, flush=True); sys.stdin.read()"


@pytest.fixture
def holder() -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds 4 GiB: more than the tests beside this one take meanwhile."""
    command = [sys.executable, "-c", HOLDS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline()
        yield process
        process.kill()


def test_the_process_that_holds_it_is_named_until_it_ends(holder: subprocess.Popen[bytes]) -> None:
    before = meminfo()["MemAvailable"]
    (problem,) = memory.too_little(before + 2 * GIB)
    (found,) = (one for one in box.largest(box.look()) if one.pid == holder.pid)
    assert str(found) in problem.message and "4.0 GiB" in str(found)
    holder.kill()
    holder.wait()
    until(lambda: memory.too_little(before + GIB) == [])  # other tests take and give back theirs
    assert str(holder.pid) not in memory.held_by()


class Spark:
    """A recorded machine: /proc/meminfo, and an nvidia-smi that prints tables."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.programs = folder, folder / "programs"
        (folder / "proc").mkdir()
        (folder / "bin").mkdir()
        smi = folder / "bin/nvidia-smi"
        smi.write_text(f'#!/bin/sh\ncase "$1" in *apps*) cat {self.programs};; *) echo "{GB10}";; esac\n')
        smi.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder / 'bin'}:/usr/bin:/bin")
        self.uses("")
        self.frees(33)

    def uses(self, programs: str) -> None:
        self.programs.write_text(programs)

    def frees(self, held: int) -> None:
        """``held``: the GiB that the driver holds."""
        free, cached = 80 - held, 40
        kib = {"MemTotal": 122, "MemFree": free, "MemAvailable": free + cached, "Cached": cached}
        lines = [f"{name}: {size << 20} kB\n" for name, size in kib.items()]
        (self.root / "proc/meminfo").write_text("".join(lines))


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spark:
    return Spark(tmp_path, monkeypatch)


def test_what_the_driver_keeps_is_said_and_a_program_that_owns_it_is_named(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(box, "RETURN", 0.0)
    assert box.settled(spark.root).left == "the driver holds 35.0 GiB that no process owns"
    (problem,) = memory.too_little(90 * GIB, spark.root)
    assert problem.message.endswith("; the driver holds 35.0 GiB that no process owns")
    for used, shown in (("33792", ", 33.0 GiB"), ("[N/A]", "")):
        spark.uses(f"611, {used}, VLLM::EngineCore\n")
        assert box.settled(spark.root).left == ""
        assert memory.held_by(spark.root) == f"held by VLLM::EngineCore (pid 611{shown})"
    spark.uses("")
    (spark.root / "proc/7").mkdir()
    (spark.root / "proc/7/statm").write_text("900000 800000 1000 1 0 1 0\n")
    (spark.root / "proc/7/comm").write_text("gnome-shell\n")
    said = "the driver holds 35.0 GiB that no process owns; held by gnome-shell (pid 7, 3.0 GiB)"
    assert memory.held_by(spark.root) == said


def test_memory_that_comes_back_is_waited_for(spark: Spark) -> None:
    timer = Timer(0.7, spark.frees, [0])
    timer.start()
    assert memory.too_little(90 * GIB, spark.root) == []
    timer.join()
    assert box.settled(spark.root).left == ""


@pytest.mark.parametrize(("local", "shares"), [(True, True), (False, True), (True, False)])
@pytest.mark.parametrize("verb", ["stop", "down"])
def test_stop_and_down_say_it(
    verb: str, local: bool, shares: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(memory, "not_returned", lambda: ["the driver holds 33.0 GiB"])
    running = [SimpleNamespace(id="1", name="serve-1")]
    deployment: Any = SimpleNamespace(
        is_local=local, profile=SimpleNamespace(shares_memory=shares), engine=None, named=str, require_name=lambda: None,
        containers=lambda *_, **__: list(running), by_name=SimpleNamespace(run=lambda *_: running.clear()),
    )  # fmt: skip
    if verb == "stop":
        lifecycle.halt(deployment, [])
    else:
        lifecycle.remove(deployment, [], volumes=False, dry_run=False)
    assert ("33.0 GiB" in capsys.readouterr().err) == (local and shares)
