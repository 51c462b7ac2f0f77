"""The compile gate against a fixed number of jobs, simulated on a recorded build of fused_moe_120.

usage: python benchmarks/gate.py [--cores N] [--learned] [GIB...]

data/fused_moe_120.csv has one line for each object: when it started, how long it took, its peak and
its resident memory every 5 s (nvcc 13.0.88, 12.1a, 16 cores, 15 jobs). The gate's own decisions
(docker/runtime/bin/compile-gate) are taken once a simulated second, on the memory that the trace
shows at that moment. "fixed" is GIB / 8 jobs in ninja's order.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
TRACE = Path(__file__).resolve().parent / "data/fused_moe_120.csv"
MIB, GIB = 1 << 20, 1 << 30
PER_JOB = 8  # GiB, as the divisor was


@dataclass(frozen=True)
class Compiled:
    """One object of the trace. ``memory``: resident MiB every 5 s."""

    name: str
    start: float
    seconds: float
    peak: int
    memory: tuple[int, ...]

    @cached_property
    def samples(self) -> list[int]:
        """The trace, with its peak where the samples are highest."""
        found = list(self.memory) or [self.peak]
        found[found.index(max(found))] = self.peak
        return found

    def at(self, second: float) -> int:
        """MiB after so many seconds."""
        return self.samples[min(int(second / 5), len(self.samples) - 1)]


@dataclass
class Outcome:
    """How a simulated build went."""

    seconds: float = 0.0
    peak: int = 0  # MiB
    paused: int = 0
    kinds: list[dict[str, int]] = field(default_factory=list)  # MiB each second, by ``kind``


def load_gate() -> ModuleType:
    """The program itself, which has no .py."""
    path, module = ROOT / "docker/runtime/bin/compile-gate", ModuleType("compile_gate")
    exec(compile(path.read_text("utf-8"), path, "exec"), vars(module))
    return module


def trace(path: Path = TRACE) -> list[Compiled]:
    """All objects, in the order in which ninja started them."""
    with path.open(encoding="utf-8") as file:
        rows = [
            Compiled(
                row["object"], float(row["start_s"]), float(row["seconds"]), int(row["peak_mib"]),
                tuple(map(int, row["rss_mib_every_5s"].split())),
            )
            for row in csv.DictReader(file)
        ]  # fmt: skip
    return sorted(rows, key=lambda one: one.start)


Choose = Callable[[list["Running"], list[Compiled], float], None]


@dataclass
class Running:
    """An object that is being compiled; ``done``: seconds of work behind it."""

    what: Compiled
    since: float
    done: float = 0.0
    top: int = 0
    paused: bool = False
    held: float = 0.0

    @property
    def memory(self) -> int:
        return self.what.at(self.done)


def simulate(
    objects: list[Compiled], choose: Choose, kind: Callable[[Compiled], str] = lambda _: ""
) -> Outcome:
    """Second by second: ``choose`` moves objects from the waiting to the running, and may pause."""
    step = 1.0
    waiting, running, outcome, now = list(objects), list[Running](), Outcome(), 0.0
    while waiting or running:
        choose(running, waiting, now)
        used = sum(one.memory for one in running)
        outcome.peak = max(outcome.peak, used)
        row: dict[str, int] = {}
        for one in running:
            row[kind(one.what)] = row.get(kind(one.what), 0) + one.memory
        outcome.kinds.append(row)
        outcome.paused += sum(one.paused for one in running)
        now += step
        for one in running:
            one.held += step if one.paused else 0.0
            one.done += 0.0 if one.paused else step
            one.top = max(one.top, one.memory)
        running[:] = [one for one in running if one.done < one.what.seconds]
    outcome.seconds = now
    return outcome


def fixed(jobs: int) -> Choose:
    """``jobs`` at once, in ninja's order."""

    def choose(running: list[Running], waiting: list[Compiled], now: float) -> None:
        while waiting and len(running) < jobs:
            running.append(Running(waiting.pop(0), now))

    return choose


def gated(gate: ModuleType, budget: int, cores: int, learned: bool = False) -> Choose:
    """As compile-gate decides with this budget (MiB); ``learned``: it has compiled all this before."""
    reserve = budget * MIB // 40

    @cache
    def expected(one: Compiled) -> tuple[int, float]:
        if learned:
            return one.peak * MIB, one.seconds
        found: tuple[int, float] = gate.expected(
            ["nvcc", "-c", "x.cu", "-o", f"fused_moe_120/{one.name}.cuda.o"], []
        )
        return found

    def choose(running: list[Running], waiting: list[Compiled], now: float) -> None:
        started, new = {}, {gate.Entry(one.name, *expected(one)): one for one in waiting}
        for one in running:
            made = gate.Entry(
                one.what.name, *expected(one.what), state="paused" if one.paused else "running"
            )
            made.current, made.top = one.memory * MIB, one.top * MIB
            made.started, made.paused = one.since, one.held
            started[made] = one
        free = budget * MIB - sum(one.memory for one in running) * MIB
        for entry, word in gate.plan([*started, *new], free, reserve, cores, now).items():
            if word == "go":
                waiting.remove(new[entry])
                running.append(Running(new[entry], now))
            else:
                started[entry].paused = word == "pause"

    return choose


def main() -> None:
    """One row for each budget."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("gib", nargs="*", type=int, default=[16, 24, 32, 48, 64, 96, 120])
    parser.add_argument(
        "--cores", type=int, default=20, help="of the machine (default: 20, a GB10)"
    )
    parser.add_argument(
        "--learned", action="store_true", help="peaks and durations of an earlier build are known"
    )
    options = parser.parse_args()
    gate, objects = load_gate(), trace()
    print("| GiB | fixed: jobs, seconds, peak | gate: seconds, peak | ratio |")
    print("| --- | --- | --- | --- |")
    for gib in options.gib:
        jobs = max(1, min(options.cores, gib // PER_JOB))
        before = simulate(objects, fixed(jobs))
        after = simulate(objects, gated(gate, gib * 1024, options.cores, options.learned))
        print(
            f"| {gib} | {jobs}: {before.seconds:.0f} s, {before.peak / 1024:.1f} GiB "
            f"| {after.seconds:.0f} s, {after.peak / 1024:.1f} GiB | {before.seconds / after.seconds:.2f} |"
        )


if __name__ == "__main__":
    main()
