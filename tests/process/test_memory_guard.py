"""docker/runtime/libexec/memory-guard: what it sees, and whom it ends, with a machine of files and real processes."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import guard_program
import pytest

GIB = 1 << 30
KIB = 1 << 10


@pytest.fixture
def guard() -> Any:
    return guard_program.load()


def machine(
    root: Path, *, left: int, stalled: float | None = 0.0, limit: str = "", used: int = 0, cache: int = 0
) -> Path:
    """A /proc and a /sys of a machine with 120 GiB. ``stalled`` None: a kernel without PSI."""
    texts = {
        "proc/meminfo": f"MemTotal: {120 * GIB // KIB} kB\nMemFree: 1 kB\nMemAvailable: {left // KIB} kB\n",
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.current": f"{used}\n",
        "sys/fs/cgroup/memory.stat": f"anon 1\ninactive_file {cache // 2}\nactive_file {cache // 2}\n",
    }
    if limit:
        texts["sys/fs/cgroup/memory.max"] = f"{limit}\n"
    if stalled is not None:
        rest = "avg60=0.00 avg300=0.00 total=1"
        texts["proc/pressure/memory"] = f"some avg10=99.00 {rest}\nfull avg10={stalled:.2f} {rest}\n"
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("seen", "low"),
    [
        ({"left": 7 * GIB}, False), ({"left": 5 * GIB}, True),
        # A machine that waits for memory is low before the floor.
        ({"left": 7 * GIB, "stalled": 60.0}, True), ({"left": 50 * GIB, "stalled": 60.0}, False),
        ({"left": 7 * GIB, "stalled": None}, False),
        # A model that is mapped fills a container's limit with page cache, which is no use of it.
        ({"left": 50 * GIB, "limit": str(10 * GIB), "used": 10 * GIB, "cache": 9 * GIB}, False),
        ({"left": 50 * GIB, "limit": str(10 * GIB), "used": 10 * GIB, "cache": 0}, True),
        # A small limit has a small floor.
        ({"left": 50 * GIB, "limit": str(64 << 20), "used": 50 << 20}, False),
        ({"left": 50 * GIB, "limit": str(64 << 20), "used": 63 << 20}, True),
    ],
)  # fmt: skip
def test_what_is_low(guard: Any, tmp_path: Path, seen: dict[str, Any], low: bool) -> None:
    assert guard.Guard(1, 6 * GIB, guard.Machine(str(machine(tmp_path, **seen)))).is_low() is low


@pytest.mark.parametrize("limit", ["max", str(1 << 62), str(500 * GIB), ""])
def test_a_limit_above_all_memory_is_none(guard: Any, tmp_path: Path, limit: str) -> None:
    (own,) = guard.Machine(str(machine(tmp_path, left=50 * GIB, limit=limit, used=40 * GIB))).cgroups
    assert own.total == 0 and own.usage() == 40 * GIB


@pytest.mark.parametrize(("fallen", "seconds"), [(0, 0.3), (20 << 20, 0.1)])
def test_it_looks_more_often_while_memory_is_taken(guard: Any, tmp_path: Path, fallen: int, seconds: float) -> None:
    """A server at rest costs little; one that grows is followed at once, also near the end of its own limit."""
    made = guard.Machine(str(machine(tmp_path, left=GIB)))
    near = [(600 << 20, 512 << 20)]
    assert guard.Guard(1, 1, made).pause([(near[0][0] + fallen, 0)], near) == seconds
    assert guard.Guard(1, 1, made).pause([], [(50 * GIB, 6 * GIB)]) == 1.0
    limit = [(50 * GIB, 6 * GIB), (60 << 20, 51 << 20)]
    watch = guard.Guard(1, 1, made)
    assert watch.pause([(50 * GIB, 0), (limit[1][0] + fallen // 5, 0)], limit) == (0.1 if fallen else 0.6)
    assert watch.pause(limit, limit) == (0.1 if fallen else 0.6), "what grows in steps is followed, too"
    busy = [(60 * GIB, 0), limit[1]]
    assert guard.Guard(1, 1, made).pause(busy, limit) == 0.6, "others of a machine with enough memory change nothing"


def test_a_kernel_that_tells_nothing(guard: Any, tmp_path: Path) -> None:
    assert guard.Machine(str(tmp_path)).left() == -1
    (machine(tmp_path, left=GIB) / "proc/self/cgroup").unlink()
    found = guard.Machine(str(tmp_path))
    assert (found.left(), found.used(), found.cgroups) == (GIB, 0, [])


@pytest.mark.parametrize(
    ("text", "floor"),
    [("auto", 6 * GIB), ("6GiB", 6 * GIB), ("6g", 6 * GIB), ("512m", 512 << 20), ("1.5G", 3 * GIB // 2), ("123", 123),
     ("off", 0), ("0", 0), ("", 0)],
)  # fmt: skip
def test_a_floor_as_it_is_written(guard: Any, text: str, floor: int) -> None:
    assert guard.floor_of(text, 120 * GIB) == floor


def test_of_a_small_machine_it_is_a_share(guard: Any) -> None:
    assert guard.floor_of("auto", 20 * GIB) == GIB
    # A GB10, by what the service leaves of it: never more than a quarter, for that is what is there at rest.
    for left, floor in (("0.30", 6.0), ("0.15", 4.5), ("0.10", 3.0), ("0.05", 1.5)):
        assert guard.floor_of(f"auto:{left}", 120 * GIB) == pytest.approx(floor * GIB, abs=2)
    with pytest.raises(ValueError, match="write it like 6GiB, or off"):
        guard.floor_of("six", GIB)


# --- real processes ---------------------------------------------------------------------------------------------------

STAY = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(100)"


@pytest.fixture
def service() -> Iterator[Any]:
    """Starts a process that takes no SIGTERM."""
    children = []

    def start(code: str = STAY) -> subprocess.Popen[str]:
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        children.append(child)
        assert child.stdout is not None and child.stdout.readline()
        return child

    yield start
    for child in children:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def acts(guard: Any, root: Path, monkeypatch: pytest.MonkeyPatch, mine: list[subprocess.Popen[str]]) -> str:
    """Run the guard of the first of these processes on a machine of files, which sees these alone; its words."""
    real, said = guard.sizes, list[str]()
    monkeypatch.setattr(guard, "sizes", lambda: [one for one in real() if one[1] in {child.pid for child in mine}])
    monkeypatch.setattr(guard, "say", said.append)
    monkeypatch.setattr(guard, "RECORD", os.devnull)
    guard.Guard(mine[0].pid, 6 * GIB, guard.Machine(str(root))).run()
    return "\n".join(said)


def test_sigterm_is_enough_where_it_is_heard(guard: Any, tmp_path: Path, monkeypatch: Any, service: Any) -> None:
    child = service("print('up', flush=True); import time; time.sleep(100)")
    said = acts(guard, machine(tmp_path, left=5 * GIB), monkeypatch, [child])
    assert child.wait() == -signal.SIGTERM
    assert (
        "5.00 GiB of memory are left, the floor is 6.00 GiB: ending the service; its largest process is python" in said
    )
    assert "left 5.00 GiB, used here 0.00 GiB" in said and "SIGKILL" not in said


def test_who_does_not_hear_is_killed_after_the_grace(
    guard: Any, tmp_path: Path, monkeypatch: Any, service: Any
) -> None:
    monkeypatch.setattr(guard, "GRACE", 0.2)
    child = service()
    said = acts(guard, machine(tmp_path, left=5 * GIB), monkeypatch, [child])
    assert child.wait() == -signal.SIGKILL and "SIGKILL to python" in said


def test_a_clock_that_jumps_changes_nothing(guard: Any, tmp_path: Path, monkeypatch: Any, service: Any) -> None:
    """It is set back by an hour at each look: counted by it, the grace would never end."""
    monkeypatch.setattr(guard, "GRACE", 0.2)
    hours = itertools.count()
    monkeypatch.setattr(guard.time, "time", lambda: -3600.0 * next(hours))
    child = service()
    acts(guard, machine(tmp_path, left=5 * GIB), monkeypatch, [child])
    assert child.wait() == -signal.SIGKILL


def test_where_it_is_urgent_the_largest_goes_first(guard: Any, tmp_path: Path, monkeypatch: Any, service: Any) -> None:
    """And what a service has forked goes with it."""
    child, worker = service(), service(f"x = bytearray(200 << 20); {STAY}")
    said = acts(guard, machine(tmp_path, left=2 * GIB), monkeypatch, [child, worker])
    assert child.wait() == worker.wait() == -signal.SIGKILL
    killed = [line for line in said.splitlines() if "SIGKILL" in line]
    assert f"({worker.pid})" in killed[0] and f"({child.pid})" in killed[1]


def test_of_two_services_the_smaller_waits(guard: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """It is not ended where the larger one's end was enough."""
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:  # the larger one has ended
            machine(tmp_path, left=50 * GIB)

    monkeypatch.setattr(guard.time, "sleep", sleep)
    small = guard.Guard(1, 6 * GIB, guard.Machine(str(machine(tmp_path, left=5 * GIB, used=GIB))))
    assert small.is_low() and not small.is_ours() and len(pauses) == 2
    large = guard.Guard(1, 6 * GIB, guard.Machine(str(machine(tmp_path / "b", left=5 * GIB, used=115 * GIB))))
    assert large.is_ours()


def test_its_own_limit_waits_for_nobody(guard: Any, tmp_path: Path) -> None:
    limited = {"left": 50 * GIB, "limit": str(64 << 20)}
    own = guard.Guard(1, 6 * GIB, guard.Machine(str(machine(tmp_path, **limited, used=62 << 20))))  # type: ignore[arg-type]
    later = threading.Timer(0.2, machine, (tmp_path,), {**limited, "used": 1 << 20})
    later.start()
    assert own.is_ours()
    later.join()


def test_swap_is_in_the_history(guard: Any, tmp_path: Path, monkeypatch: Any, service: Any) -> None:
    root = machine(tmp_path, left=5 * GIB)
    with (root / "proc/meminfo").open("a") as file:
        file.write(f"SwapTotal: {16 * GIB // KIB} kB\nSwapFree: {13 * GIB // KIB} kB\n")
    said = acts(guard, root, monkeypatch, [service("print('up', flush=True); import time; time.sleep(100)")])
    assert "used here 0.00 GiB, in swap 3.00 GiB" in said


def test_a_guard_that_is_killed_says_so_and_the_service_goes_on(service: Any) -> None:
    child = service()
    outer = subprocess.Popen(
        [sys.executable, "-I", "-S", str(guard_program.PATH), str(child.pid)],
        env={"ENVGEN_MEMORY_FLOOR": "1"}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
    while not (inner := children.read_text().split()):
        time.sleep(0.01)
    os.kill(int(inner[0]), signal.SIGKILL)
    assert "ended by signal 9: the service goes on without a guard" in outer.communicate(timeout=60)[1]
    assert child.poll() is None


def test_a_service_that_ends_by_itself_ends_its_guard(
    guard: Any, tmp_path: Path, monkeypatch: Any, service: Any
) -> None:
    child = service("print('up', flush=True)")
    child.wait()
    assert acts(guard, machine(tmp_path, left=50 * GIB), monkeypatch, [child]) == ""


@pytest.mark.parametrize(("floor", "said"), [("900TiB", "the floor is"), ("six", "is not an amount of memory")])
def test_a_floor_that_cannot_be_kept_ends_the_service(floor: str, said: str, service: Any) -> None:
    child = service("print('up', flush=True); import time; time.sleep(100)")
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(guard_program.PATH), str(child.pid)],
        env={"ENVGEN_MEMORY_FLOOR": floor}, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert said in done.stderr and child.wait() == -signal.SIGTERM
