"""The builds of scripts/gate-proof. Standard library only; ninja compiles in processes of its own."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

REPOSITORY, WORK, PYTHON = Path(sys.argv[1]).resolve(), Path(sys.argv[2]), sys.argv[3]
BUDGETS = [int(word) for word in sys.argv[4:]]
sys.path.insert(0, str(REPOSITORY / "scripts/lib"))

from proof import Proof  # noqa: E402

GATE = REPOSITORY / "docker/runtime/bin/compile-gate"
DEADLINE = time.monotonic() + float(os.environ.get("ENVGEN_PROOF_SECONDS", "1800"))
PER_JOB = 8  # GiB a job, as the divisor was
NINJAS_SLOTS = 128  # behind the gate; a waiting compiler occupies one
PATIENCE = 120  # seconds for eight light sources
LEAST_RATIO, MOST_OVERHEAD, ROUNDS = 1.8, 0.02, 2
# fixed or gate: only these builds, and no verdict. Where a command may run for ten minutes, it takes two of them.
PART = os.environ.get("ENVGEN_PROOF_PART", "")
# Another module than the mission's, all of it, makes a quick trial of this script.
MODULE = os.environ.get("ENVGEN_PROOF_MODULE", "fused_moe_120")
LIGHT = re.compile(r"gemm_sm90_M128_group[0-7]\.")
NINJA = """
import sys
from pathlib import Path
from flashinfer.jit.fused_moe import gen_cutlass_fused_moe_sm120_module
from flashinfer.jit.norm import gen_norm_module
from flashinfer.jit.page import gen_page_module
generators = {"fused_moe_120": gen_cutlass_fused_moe_sm120_module, "page": gen_page_module, "norm": gen_norm_module}
spec = generators[sys.argv[1]]()
spec.write_ninja()
print("NINJA %s" % spec.ninja_path)
"""
PROOF = Proof()


def ninja_file() -> Path:
    """FlashInfer's own build.ninja of the module."""
    done = subprocess.run([PYTHON, "-c", NINJA, MODULE], cwd=WORK, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        if line.startswith("NINJA "):
            return Path(line[6:])
    sys.exit("gate-proof: FlashInfer wrote no build.ninja:\n" + (done.stdout + done.stderr)[-3000:])


def memory(pid: int) -> int:
    """Resident bytes of a process and all below it."""
    try:
        total = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (OSError, IndexError):
        return 0
    return total + sum(memory(int(child)) for child in children)


class Build:
    """One ninja in a folder of its own, on some cores, with or without the gate."""

    def __init__(
        self, name: str, source: Path, targets: list[str], cores: range, jobs: int, budget: int | None
    ) -> None:
        self.name, self.targets, self.cores, self.jobs, self.budget = name, targets, cores, jobs, budget
        self.folder = WORK / name
        self.folder.mkdir()
        text = source.read_text()
        if budget is not None:
            text = re.sub(r"^nvcc = (.*)$", rf"nvcc = {GATE} \1", text, count=1, flags=re.MULTILINE)
        (self.folder / "build.ninja").write_text(text)
        self.deadline = DEADLINE
        self.peak = 0
        self.seconds = 0.0
        self.code: int | None = None
        self.log = ""

    def run(self) -> None:
        """Compile, and watch the memory of all that belongs to it."""
        env = dict(os.environ, ENVGEN_GATE_DIR=str(self.folder / "gate"))
        if self.budget:
            env["ENVGEN_GATE_MEMORY"] = str(self.budget)
        cuda_home = re.search(r"^cuda_home = (.*)$", (self.folder / "build.ninja").read_text(), re.MULTILINE)
        if cuda_home:
            env["CUDA_HOME"] = cuda_home[1]
        start = time.monotonic()
        with (self.folder / "log").open("wb") as log:
            argv = ["taskset", "-c", f"{self.cores.start}-{self.cores.stop - 1}",
                    "ninja", "-j", str(self.jobs), *self.targets]  # fmt: skip
            running = subprocess.Popen(argv, cwd=self.folder, env=env, stdout=log, stderr=log, start_new_session=True)
            while self.code is None:
                self.peak = max(self.peak, memory(running.pid))
                if time.monotonic() > self.deadline:
                    with contextlib.suppress(OSError):
                        os.kill(running.pid, signal.SIGTERM)
                    self.code = -1
                    running.wait()
                    break
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.code = running.wait(0.5)
        self.seconds = time.monotonic() - start
        self.log = (self.folder / "log").read_text(errors="replace")
        self.made = len(list((self.folder / MODULE).glob("**/*.o")))
        if self.code == 0:
            shutil.rmtree(self.folder / MODULE, ignore_errors=True)

    def facts(self) -> dict[str, Any]:
        """What is printed."""
        facts = {"cores": len(self.cores), "jobs": self.jobs, "seconds": round(self.seconds, 1),
                 "peak_gib": round(self.peak / (1 << 30), 1), "objects": [self.made, len(self.targets)]}  # fmt: skip
        if self.code == -1:
            facts["stopped"] = "not done in time"
        elif self.code:
            facts["error"] = self.log[-1500:]
        return facts


def together(*lanes: list[Build]) -> None:
    """Each lane's builds one after another, all lanes at the same time."""
    threads = [threading.Thread(target=lambda lane=lane: [build.run() for build in lane]) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> int:
    """All builds, then the document."""
    source = ninja_file()
    every = re.findall(r"^build (\S+\.o): cuda_compile ", source.read_text(), re.MULTILINE)
    every = [target.replace("$name", MODULE) for target in every]
    # Every second one: the names sort by kernel, so these have half of the heavy and half of the slow ones.
    chosen = sorted(every)[::2] if MODULE == "fused_moe_120" else every
    light = [t for t in every if LIGHT.search(t)] if MODULE == "fused_moe_120" else every[:1]
    cores = os.cpu_count() or 1
    fixed, place = [], 0
    for budget in BUDGETS:
        jobs = max(1, budget // PER_JOB)
        width = min(jobs, max(1, cores // (len(BUDGETS) + 1)))
        fixed.append(Build(f"fixed-{budget}", source, chosen, range(place, place + width), jobs, None))
        place += width
    rest = range(max(0, cores - 16), cores) if PART == "gate" else range(min(place, cores - 1), cores)
    gated = [Build(f"gate-{budget}", source, chosen, rest, NINJAS_SLOTS, budget) for budget in BUDGETS]
    together(*[[one] for one in fixed if PART != "gate"], gated if PART != "fixed" else [])
    if PART:
        for build in gated if PART == "gate" else fixed:
            PROOF.step(build.name, build.code in (0, -1), **build.facts())
        return PROOF.end()
    for budget, before, after in zip(BUDGETS, fixed, gated, strict=True):
        ratio = before.seconds / max(after.seconds, 0.1)
        good = after.code == 0 and before.code in (0, -1) and ratio >= LEAST_RATIO and after.peak <= budget << 30
        name = f"{budget} GiB: at least {LEAST_RATIO} times as fast as {before.jobs} jobs, never above the budget"
        PROOF.step(name, good, ratio=round(ratio, 2), fixed=before.facts(), gate=after.facts())  # fmt: skip
    overhead(source, light, cores)
    return PROOF.end()


def overhead(source: Path, light: list[str], cores: int) -> None:
    """Where memory is plenty: the same objects with and without the gate, side by side, then on each other's cores."""
    half = cores // 2
    sides = (range(half), range(half, 2 * half)) if half else (range(cores), range(cores))
    plain, gated = [], []
    for number in range(ROUNDS):
        one = Build(f"plain-{number}", source, light, sides[number % 2], half or 1, None)
        other = Build(f"gated-{number}", source, light, sides[1 - number % 2], NINJAS_SLOTS, 0)
        one.deadline = other.deadline = time.monotonic() + PATIENCE
        together([one], [other])
        plain.append(one)
        gated.append(other)
    seconds = [sum(one.seconds for one in side) for side in (plain, gated)]
    cost = seconds[1] / max(seconds[0], 0.1) - 1
    good = all(one.code == 0 for one in plain + gated) and cost <= MOST_OVERHEAD
    PROOF.step(f"plenty of memory: the gate costs at most {MOST_OVERHEAD:.0%}", good, cost=round(cost, 4),
               plain=[one.facts() for one in plain], gate=[one.facts() for one in gated])  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
