"""The compile gate with real processes: compilers that take memory, are killed, hang, meet in one folder."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from local import until

GATE = Path(__file__).resolve().parents[2] / "docker/runtime/bin/compile-gate"

# A compiler: MIB and its exit code from its source, a note when it starts and ends, an object at the end. It goes on
# until there is a file SOURCE.go: what a test is about must not depend on how fast the machine is.
COMPILER = """#!{python} -IS
import os, sys, time
argv = sys.argv
source, output = argv[argv.index("-c") + 1], argv[argv.index("-o") + 1]
mib, code = open(source).read().split()
log = os.open({log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(log, ("start %s %d\\n" % (os.path.basename(source), os.getpid())).encode())
block = bytearray(int(float(mib) * (1 << 20)))
for place in range(0, len(block), 4096):
    block[place] = 1
while not os.path.exists(source + ".go"):
    time.sleep(0.02)
os.write(log, ("end %s\\n" % os.path.basename(source)).encode())
if int(code) > 0:
    sys.exit(int(code))
if int(code) < 0:
    os.kill(os.getpid(), -int(code))
os.makedirs(os.path.dirname(output) or ".", exist_ok=True)
open(output, "w").close()
"""


class Lab:
    """A folder with a compiler, and gates that were started in it."""

    def __init__(self, folder: Path, state: Path) -> None:
        self.folder = folder
        self.state = state
        self.log = folder / "log"
        self.compiler = folder / "nvcc"
        self.compiler.write_text(COMPILER.format(python=sys.executable, log=str(self.log)))
        self.compiler.chmod(0o755)
        self.started: list[subprocess.Popen[str]] = []
        self.gate = GATE

    def source(self, name: str, mib: float = 1, code: int = 0, *, holds: bool = False) -> list[str]:
        """A command line. ``holds``: it compiles until ``let``."""
        (self.folder / name).write_text(f"{mib} {code}")
        if not holds:
            self.let(name)
        return [str(self.compiler), "-c", str(self.folder / name), "-o", str(self.folder / "out" / f"{name}.o")]

    def let(self, *names: str) -> None:
        """Let these compilers end."""
        for name in names:
            (self.folder / f"{name}.go").touch()

    def expect(self, name: str, mib: int, seconds: float) -> None:
        """As if it had been learned."""
        path = self.state / "learned" / f"nvcc-{self.folder.parent.name}" / "out" / f"{name}.o"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{mib} {seconds}\n")

    def start(self, argv: list[str], **env: str) -> subprocess.Popen[str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("ENVGEN_GATE")}
        process = subprocess.Popen(
            [str(self.gate), *argv], env={**clean, "ENVGEN_GATE_DIR": str(self.state), "ENVGEN_GATE_CORES": "8", **env},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        self.started.append(process)
        return process

    def one_waits(self) -> list[subprocess.Popen[str]]:
        """The gates of a.cu, which compiles until ``let``, and of b.cu, which does not fit beside it."""
        for name in ("a.cu", "b.cu"):
            self.expect(name, 900, 5)
            self.start(self.source(name, holds=name == "a.cu"), ENVGEN_GATE_MEMORY="1")
            until(lambda: self.names("start"))
        until(lambda: self.status()["waiting"] == 1)
        return self.started

    def one_is_paused(self) -> subprocess.Popen[str]:
        """The gate of young.cu. Both are thought to be small; together they take more than the budget of 0.25 GiB."""
        for name in ("old.cu", "young.cu"):
            self.expect(name, 20, 5)
            self.start(self.source(name, 150, holds=True), ENVGEN_GATE_MEMORY="0.25")
            until(lambda: self.names("start"))
        until(lambda: self.status()["paused"] == 1)
        return self.started[-1]

    def changed(self, *pairs: tuple[str, str]) -> None:
        """From here on a gate with these texts replaced."""
        text = GATE.read_text()
        for old, new in pairs:
            assert old in text
            text = text.replace(old, new)
        self.gate = self.folder / "compile-gate"
        self.gate.write_text(text)
        self.gate.chmod(0o755)

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def names(self, word: str) -> list[str]:
        return [line.split()[1] for line in self.lines() if line.startswith(word)]

    def pid(self, name: str) -> int:
        return next(int(line.split()[2]) for line in self.lines() if line.startswith(f"start {name} "))

    def scheduler(self) -> int:
        """The first gate's child that is not its compiler."""
        gate = self.started[0].pid
        children = map(int, Path(f"/proc/{gate}/task/{gate}/children").read_text().split())
        return next(pid for pid in children if pid != self.pid(self.names("start")[0]))

    def status(self) -> dict[str, Any]:
        env = {**os.environ, "ENVGEN_GATE_DIR": str(self.state)}
        found: dict[str, Any] = json.loads(subprocess.check_output([str(GATE), "status", "--json"], env=env, text=True))
        return found

    def ends(self) -> list[int]:
        return [process.wait(120) for process in self.started]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    (tmp_path / "cuda/bin").mkdir(parents=True)
    # The address of a socket has room for 107 bytes only: too few for pytest's own folder.
    with tempfile.TemporaryDirectory(prefix="gate.") as state:
        made = Lab(tmp_path / "cuda/bin", Path(state) / "state")
        yield from using(made)


def using(made: Lab) -> Iterator[Lab]:
    yield made
    made.let(*(path.name for path in made.folder.glob("*.cu")))  # also those whose gate was killed
    for process in made.started:
        if process.poll() is None:
            process.terminate()
            process.wait(60)
        if process.stdout is not None:
            process.stdout.close()


def leaves_nothing(lab: Lab) -> None:
    """The scheduler ends after the last gate."""
    until(lambda: [path.name for path in (lab.state / "gate").iterdir()] == ["door"])


def test_it_compiles_learns_and_leaves_nothing_behind(lab: Lab) -> None:
    argv = lab.source("a.cu", 60)
    assert lab.start(argv).wait(60) == 0
    assert (lab.folder / "out/a.cu.o").exists()
    [learned] = (lab.state / "learned").glob("*/out/a.cu.o")
    peak, seconds = learned.read_text().split()
    assert 60 <= int(peak) <= 120 and float(seconds) >= 0
    leaves_nothing(lab)


@pytest.mark.parametrize("code", [3, -signal.SIGSEGV])
def test_it_ends_as_the_compiler_does(lab: Lab, code: int) -> None:
    assert lab.start(lab.source("a.cu", 1, code)).wait(60) == code
    assert not list((lab.state / "learned").glob("*/out/a.cu.o"))
    leaves_nothing(lab)


def test_one_that_was_killed_for_its_memory_is_expected_to_need_more(lab: Lab) -> None:
    lab.expect("a.cu", 100, 5)
    assert lab.start(lab.source("a.cu", 1, -signal.SIGKILL)).wait(60) == -signal.SIGKILL
    [learned] = (lab.state / "learned").glob("*/out/a.cu.o")
    assert learned.read_text().split()[0] == "150"


def test_what_does_not_fit_waits_until_memory_is_given_back(lab: Lab) -> None:
    lab.one_waits()
    lab.let("a.cu")
    assert lab.ends() == [0, 0]
    words = [line.split()[0] for line in lab.lines()]
    assert words == ["start", "end", "start", "end"]


def test_what_fits_runs_at_the_same_time_and_the_longest_first(lab: Lab) -> None:
    lab.expect("holds.cu", 900, 90)
    holds = lab.start(lab.source("holds.cu", holds=True), ENVGEN_GATE_MEMORY="1", ENVGEN_GATE_CORES="2")
    until(lambda: lab.names("start"))
    for name, seconds in (("short.cu", 1), ("long.cu", 90), ("middle.cu", 30)):
        lab.expect(name, 100, seconds)
        lab.start(lab.source(name, holds=True), ENVGEN_GATE_MEMORY="1", ENVGEN_GATE_CORES="2")
    until(lambda: lab.status()["waiting"] == 3)
    os.kill(lab.pid("holds.cu"), signal.SIGKILL)  # gives its memory back
    assert holds.wait(60) == -signal.SIGKILL
    # Both cores are taken by the two longest; which of them is the first to start is the machine's.
    until(lambda: len(lab.names("start")) == 3)
    assert set(lab.names("start")) == {"holds.cu", "long.cu", "middle.cu"}
    lab.let("long.cu", "middle.cu", "short.cu")
    assert lab.ends()[1:] == [0] * 3
    assert lab.names("start")[3] == "short.cu"


def test_a_core_that_is_free_again_is_given_on_at_once(lab: Lab) -> None:
    # A scheduler that looks by itself only once an hour.
    lab.changed(("\nTICK = 1.0 ", "\nTICK = 3600.0 "), ("\nHURRY = 0.25 ", "\nHURRY = 3600.0 "))
    scheduler = lab.start(lab.source("scheduler.cu", holds=True), ENVGEN_GATE_CORES="2")
    until(lambda: len(lab.names("start")) == 1)
    lab.start(lab.source("ends.cu", holds=True), ENVGEN_GATE_CORES="2")
    until(lambda: len(lab.names("start")) == 2)
    last = lab.start(lab.source("waits.cu"), ENVGEN_GATE_CORES="2")
    until(lambda: lab.status()["waiting"] == 1)
    lab.let("ends.cu")
    assert last.wait(60) == 0 and scheduler.poll() is None


def test_no_clock_that_may_jump_is_asked(lab: Lab) -> None:
    lab.changed(("\nimport time\n", "\nimport time\ndel time.time, time.time_ns\n"))
    lab.one_waits()
    lab.let("a.cu")
    assert lab.ends() == [0, 0]
    assert list((lab.state / "learned").glob("*/*/*")), "a scheduler was there"


def test_a_compiler_that_hangs_stops_no_other_that_fits(lab: Lab) -> None:
    for name in ("hangs.cu", "a.cu", "b.cu", "c.cu"):
        lab.expect(name, 400, 5)
    hangs = lab.start(lab.source("hangs.cu", holds=True), ENVGEN_GATE_MEMORY="1")
    until(lambda: lab.names("start"))
    for name in ("a.cu", "b.cu", "c.cu"):  # one at a time fits beside it
        lab.start(lab.source(name), ENVGEN_GATE_MEMORY="1")
    assert [process.wait(120) for process in lab.started[1:]] == [0, 0, 0]
    assert hangs.poll() is None and lab.status()["running"] == 1


def test_a_killed_gate_leaves_no_slot_taken(lab: Lab) -> None:
    first, second = lab.one_waits()
    first.kill()
    assert second.wait(60) == 0
    leaves_nothing(lab)


def test_a_killed_scheduler_is_replaced_by_one_that_knows_what_runs(lab: Lab) -> None:
    lab.one_waits()
    os.kill(lab.scheduler(), signal.SIGKILL)
    until(lambda: not lab.status()["compilers"])
    until(lambda: (lab.status()["running"], lab.status()["waiting"]) == (1, 1))
    lab.let("a.cu")
    assert lab.ends() == [0, 0]
    assert [line.split()[0] for line in lab.lines()] == ["start", "end", "start", "end"]
    leaves_nothing(lab)


def test_where_every_scheduler_dies_the_compiler_runs_anyway(lab: Lab) -> None:
    first = "\n    gates: dict[socket.socket, Entry] = {}\n"
    lab.changed((first, "\n    os._exit(1)\n"), ("\nTICK = 1.0 ", "\nTICK = 0.05 "))
    assert lab.start(lab.source("a.cu")).wait(60) == 0
    assert lab.names("end") == ["a.cu"]


def test_a_waiting_gate_ends_at_once_and_is_forgotten(lab: Lab) -> None:
    first, second = lab.one_waits()
    second.terminate()
    assert second.wait(60) == -signal.SIGTERM
    lab.let("a.cu")
    assert first.wait(60) == 0
    assert lab.names("start") == ["a.cu"]
    leaves_nothing(lab)


def test_a_signal_reaches_the_compiler(lab: Lab) -> None:
    gate = lab.start(lab.source("a.cu", holds=True))
    until(lambda: lab.names("start"))
    gate.terminate()
    assert gate.wait(60) == -signal.SIGTERM
    until(lambda: not Path(f"/proc/{lab.pid('a.cu')}").exists())


def process_state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_the_youngest_is_paused_when_memory_runs_out_and_goes_on_later(lab: Lab) -> None:
    lab.one_is_paused()
    until(lambda: process_state(lab.pid("young.cu")) == "T")
    lab.let("young.cu")  # it can't see that: it is stopped
    lab.let("old.cu")
    assert lab.ends() == [0, 0]
    assert lab.names("end") == ["old.cu", "young.cu"]
    for learned in (lab.state / "learned").glob("*/out/*"):
        assert int(learned.read_text().split()[0]) >= 150, learned


def test_a_killed_gate_does_not_leave_a_paused_compiler_stopped_for_ever(lab: Lab) -> None:
    young = lab.one_is_paused()
    pid = lab.pid("young.cu")
    young.kill()
    young.wait(60)
    until(lambda: not Path(f"/proc/{pid}").exists() or process_state(pid) != "T")


def test_a_need_of_more_than_the_machine_has_is_printed_and_runs_alone(lab: Lab) -> None:
    lab.expect("a.cu", 3000, 5)
    gate = lab.start(lab.source("a.cu"), ENVGEN_GATE_MEMORY="1")
    out = gate.communicate(timeout=60)[0]
    assert gate.returncode == 0
    assert out.count("\n") == 1 and "is expected to need 2.9 GiB, and there are 1.0 GiB in all" in out


@pytest.mark.parametrize("argv", [["--version"], ["-shared", "a.o", "-o", "a.so"]])
def test_what_is_no_compilation_is_not_held_up(lab: Lab, argv: list[str]) -> None:
    lab.compiler.write_text('#!/bin/sh\necho "ran $*"\n')
    assert lab.start([str(lab.compiler), *argv]).communicate(timeout=60)[0] == f"ran {' '.join(argv)}\n"
    assert not lab.state.exists()


def test_as_flashinfer_and_torch_call_it_it_is_nvcc(lab: Lab) -> None:
    gate = lab.start(lab.source("a.cu")[1:], CUDA_HOME=str(lab.folder.parent))
    assert gate.wait(60) == 0
    assert lab.names("end") == ["a.cu"]


def test_off_and_inside_another_gate_it_only_runs(lab: Lab) -> None:
    assert lab.start(lab.source("a.cu"), ENVGEN_GATE="off").wait(60) == 0
    assert not lab.state.exists()
    assert lab.start([str(GATE), *lab.source("a.cu")]).wait(60) == 0
    assert len(list((lab.state / "learned").glob("*/*/*"))) == 1


def test_a_compiler_that_is_not_there(lab: Lab) -> None:
    gate = lab.start(["/no/such/nvcc", "-c", "a.cu", "-o", "a.o"])
    assert gate.communicate(timeout=60)[0] == "compile-gate: cannot run /no/such/nvcc: No such file or directory\n"
    assert gate.returncode == 127


@pytest.mark.parametrize("broken", ["file", "read_only", "foreign", "full"])
def test_a_place_that_can_t_be_used_is_passed_over(lab: Lab, broken: str) -> None:
    if broken == "file":
        lab.state.write_text("not a folder")
    elif broken == "read_only":
        # Even root can't write below /proc.
        lab.state = Path("/proc/self")
    elif broken == "full":  # /dev/full refuses every byte
        (lab.state / "gate").mkdir(parents=True)
        (lab.state / "gate/door").symlink_to("/dev/full")
        (lab.state / "learned").symlink_to("/dev/full")
    else:
        (lab.state / "gate").mkdir(parents=True)
        os.chown(lab.state / "gate", 12345, 12345)
    assert lab.start(lab.source("a.cu")).wait(60) == 0
    assert lab.names("end") == ["a.cu"]


@pytest.mark.parametrize("left", ["file", "socket"])
def test_what_lies_where_the_scheduler_was_is_replaced(lab: Lab, left: str) -> None:
    folder = lab.state / "gate"
    folder.mkdir(parents=True)
    if left == "file":
        (folder / "scheduler").write_bytes(b"\0garbage")
    else:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
            dead.bind(str(folder / "scheduler"))
    assert lab.status()["running"] == 0
    assert lab.start(lab.source("a.cu")).wait(60) == 0
    assert list((lab.state / "learned").glob("*/*/*"))  # not in /tmp
    leaves_nothing(lab)


def test_those_that_wait_sleep(lab: Lab) -> None:
    """A hundred may wait: each is woken when its turn comes, and by nothing before."""
    lab.expect("holds.cu", 1000, 60)
    lab.start(lab.source("holds.cu", holds=True), ENVGEN_GATE_MEMORY="1")
    until(lambda: lab.names("start"))
    for number in range(10):
        lab.expect(f"w{number}.cu", 900, 5)
        lab.start(lab.source(f"w{number}.cu"), ENVGEN_GATE_MEMORY="1")
    until(lambda: lab.status()["waiting"] == 10)

    def switches(pid: int) -> int:
        """How often the process has run until it waited again."""
        text = Path(f"/proc/{pid}/status").read_text()
        return int(text.partition("\nvoluntary_ctxt_switches:")[2].split()[0])

    def while_it_looks() -> list[int]:
        """Of those that wait, after the scheduler has looked at the free memory a few times more."""
        looks = switches(lab.scheduler())
        until(lambda: switches(lab.scheduler()) > looks + 2)
        return [switches(process.pid) for process in lab.started[1:]]

    assert while_it_looks() == while_it_looks()
    assert lab.names("start") == ["holds.cu"]


@pytest.mark.parametrize("script", ["runtime/bin/entrypoint", "build/build-wheel"])
def test_without_a_gate_four_compilers_run(tmp_path: Path, script: str) -> None:
    """The scripts themselves, with this machine's gate in the image's place."""
    folder = tmp_path / "meet"
    text = (GATE.parents[2] / script).read_text()
    for name in ("/opt/envgen/bin/compile-gate", "/run/envgen/lib/compile-gate"):
        text = text.replace(name, str(GATE))
    lines = text.replace("/run/envgen/cache/gate", str(folder)).splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(("export MAX_JOBS=", "export ENVGEN_GATE_DIR=")))
    end = next(n for n, line in enumerate(lines) if n > start and line == "fi" and "MAX_JOBS=4" in lines[n - 1])
    program = "\n".join(["set -eu; jobs=${GIVEN-}; gate=" + str(GATE), *lines[start : end + 1], 'echo "$MAX_JOBS"'])

    def jobs(**given: str) -> str:
        environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "ENVGEN_GATE_DIR": str(folder), **given}
        return subprocess.run(["sh", "-c", program], env=environ, capture_output=True, text=True, check=True).stdout

    assert jobs() == "128\n"
    assert jobs(ENVGEN_GATE="off") == "4\n"
    assert jobs(ENVGEN_GATE="off", MAX_JOBS="9", GIVEN="9") == "9\n"


def test_a_python3_that_hangs_is_named_in_time(tmp_path: Path) -> None:
    """A wrapper that is first on PATH: `up` would wait for it without a word."""
    text = (GATE.parents[2] / "runtime/bin/entrypoint").read_text().replace("timeout 60", "timeout 1")
    begin = text.index("# What follows starts python3")
    program = tmp_path / "entrypoint"
    program.write_text("set -eu\n" + text[begin : text.index("# Without a number of compilers")])
    (tmp_path / "python3").write_text("#!/bin/sh\nsleep 1000\n")
    (tmp_path / "python3").chmod(0o755)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", program], env=environ, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1 and f"{tmp_path}/python3 did not end within" in done.stderr
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 3\n")  # what it says otherwise is not asked here
    assert subprocess.run(["sh", program], env=environ, check=False, timeout=60).returncode == 0
