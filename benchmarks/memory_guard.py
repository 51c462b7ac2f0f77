"""What eats memory, with and without docker/runtime/libexec/memory-guard: who ends it, and what a
heartbeat of this machine loses meanwhile; and what the guard costs. Prints tables of Markdown.

    python benchmarks/memory_guard.py [IMAGE]

IMAGE (default: the stand-in base) needs Python and runs on Docker's own engine. An eater stops at 6
GiB, and the floor is what is available less 2 GiB, so that this machine is in no danger; without
the guard only rows with a limit are run:
without both nothing ends an eater but the kernel's killer, after the machine has thrashed.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from pathlib import Path

GIB = 1 << 30
MOST = 6 * GIB
RUNTIME = Path(__file__).resolve().parents[1] / "docker/runtime"
EAT = (
    "import sys, time; rate, most = int(sys.argv[1]), int(sys.argv[2]); began = time.monotonic(); "
    "kept = [(bytearray(b'x') * (1 << 24), time.sleep(max(0, (n << 24) / rate - (time.monotonic() - began))))"
    " for n in range(most >> 24)]; time.sleep(1000)"
)
START = 'exec python3 -I /opt/envgen/libexec/record-env "$@" 3>&1'


def available() -> int:
    found = re.search(
        r"^MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text(encoding="utf-8"), re.M
    )
    assert found is not None
    return int(found[1]) << 10


class Heartbeat(threading.Thread):
    """A program of this machine that wants its turn every 10 ms. ``lost``: the longest that it
    waited, in seconds.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.lost, self.over = 0.0, threading.Event()

    def run(self) -> None:
        last = time.monotonic()
        while not self.over.wait(0.01):
            now = time.monotonic()
            self.lost, last = max(self.lost, now - last - 0.01), now


def start(image: str, floor: int, limit: str, *command: str) -> str:
    words = ["--memory", limit, "--memory-swap", limit] if limit else []
    env = ["-e", f"ENVGEN_MEMORY_FLOOR={floor or 'off'}"]
    made = subprocess.run(
        ["docker", "run", "-d", "--init", *words, *env, "-v", f"{RUNTIME}:/opt/envgen:ro", "--entrypoint", "sh", image,
         "-c", START, "sh", *command],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return made.stdout.strip()


def docker(*words: str) -> str:
    done = subprocess.run(["docker", *words], check=True, capture_output=True, text=True)
    return (done.stdout + done.stderr).strip()


def row(image: str, rate: int, limit: str, guarded: bool) -> str:
    floor = available() - 2 * GIB if guarded else 0
    beat = Heartbeat()
    beat.start()
    began = time.monotonic()
    container = start(image, floor, limit, "python3", "-c", EAT, str(rate), str(MOST))
    code = docker("wait", container)
    seconds = time.monotonic() - began
    beat.over.set()
    log = docker("logs", container)
    by = "the guard" if "ending the service" in log else "the kernel"
    left = re.search(
        r"memory guard: ([0-9.]+ GiB) of memory are left, the floor is ([0-9.]+ GiB)", log
    )
    docker("rm", "-f", container)
    seen = f"{left[1]} at a floor of {left[2]}" if left else "-"
    speed = f"{rate / GIB:g} GiB/s" if rate >= GIB else f"{rate >> 20} MiB/s"
    who = "with" if guarded else "without"
    ended = f"{by}, exit code {code}, {seconds:.1f} s"
    return f"| {speed} | {limit or 'none'} | {who} | {ended} | {seen} | {beat.lost * 1000:.0f} ms |"


HELD = "import sys, time; kept = bytearray(b'x') * int(sys.argv[1]); time.sleep(1000)"
# Reads what the guard reads, and then says that so much is left: the memory of a busy machine does
# not stand still.
LEFT = (
    "import importlib.machinery, sys, types; sys.dont_write_bytecode = True; "
    "loader = importlib.machinery.SourceFileLoader('guard', '/opt/envgen/libexec/memory-guard'); "
    "guard = types.ModuleType('guard'); loader.exec_module(guard); real = guard.Machine.left; "
    "floor, above = int(sys.argv[1]), int(sys.argv[2]); "
    "guard.Machine.left = lambda self: real(self) * 0 + floor + above; "
    "guard.Guard(1, floor, guard.Machine()).run()  # memory-guard"
)
STATES = {  # where: floor, limit, command
    "far from its floor": (GIB, "", ["sleep", "1000"]),
    "0.5 GiB above a floor of 6 GiB": (
        0,
        "",
        ["python3", "-I", "-S", "-c", LEFT, str(6 * GIB), str(GIB // 2)],
    ),
    "0.1 GiB above a floor of 6 GiB": (
        0,
        "",
        ["python3", "-I", "-S", "-c", LEFT, str(6 * GIB), str(GIB // 10)],
    ),
    "0.1 GiB above a floor of 0.5 GiB": (
        0,
        "",
        ["python3", "-I", "-S", "-c", LEFT, str(GIB // 2), str(GIB // 10)],
    ),
    "0.02 GiB above the floor of a limit of 1 GiB": (
        GIB,
        "1g",
        ["python3", "-c", HELD, str(935 << 20)],
    ),
}


def cost(image: str, where: str, seconds: int = 60) -> str:
    floor, limit, command = STATES[where]
    container = start(image, floor, limit, *command)
    try:
        time.sleep(5)
        script = "for p in /proc/[0-9]*; do if grep -qs memory-[g]uard $p/cmdline; then cat $p/stat; fi; done"

        def ticks() -> int:
            found = [
                line.rpartition(")")[2].split()
                for line in docker("exec", container, "sh", "-c", script).splitlines()
            ]
            return sum(int(one[11]) + int(one[12]) for one in found)  # its two processes

        before = ticks()
        time.sleep(seconds)
        share = (ticks() - before) / 100 / seconds
        status = docker("exec", container, "sh", "-c", script.replace("stat;", "status;"))
        resident = max(map(int, re.findall(r"VmRSS:\s+(\d+)", status)), default=0)
        return f"| {where} | {share:.3%} | {resident >> 10} MiB |"
    finally:
        docker("rm", "-f", container)


def main() -> None:
    image = sys.argv[1] if len(sys.argv) > 1 else "nvcr.io/nvidia/pytorch:25.12-py3"
    print(
        "| eats | limit | guard | ended by | left | a heartbeat lost |\n| --- | --- | --- | --- | --- | --- |"
    )
    for rate in (2 * GIB, 50 << 20):
        for limit, guarded in (("", True), ("1g", True), ("1g", False)):
            print(row(image, rate, limit, guarded), flush=True)
    print("\n| the guard is | of a core | resident |\n| --- | --- | --- |")
    for where in STATES:
        print(cost(image, where), flush=True)


if __name__ == "__main__":
    main()
