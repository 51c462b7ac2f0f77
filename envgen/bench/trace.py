"""Where a token's time goes: kernels by what people call them, for prefill and decode."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import yaml

from envgen.bench.facts import RunningService
from envgen.bench.record import RunRecord, load
from envgen.binding import JsonObject
from envgen.deployment import LiveService
from envgen.engine.values import MISSHAPEN, Container
from envgen.errors import EnvgenError
from envgen.text import shorten

GAPS = {"gpu": "gaps (the GPU waits)", "cpu": "Python, between operators"}
_DATA = yaml.safe_load(Path(__file__).with_name("kernels.yaml").read_bytes())
HEAD = ("kernel", "share", "calls", "mean, us", "sum, us", "before")


@dataclass(frozen=True)
class KernelRow:
    """A kind of kernels, or one kernel. ``share``: of the wall time, in per cent."""

    name: str
    share: float
    calls: int
    mean_us: float
    sum_us: float


def kind_of(kernel: str) -> str:
    """What people call what this kernel does."""
    for kind, names in _DATA["kinds"].items():
        if _fits(names, kernel):
            return str(kind)
    return "other"


def _fits(names: str, kernel: str) -> bool:
    return re.search(names, kernel, re.IGNORECASE | re.VERBOSE) is not None


@dataclass(frozen=True)
class RanBackend:
    """Whose kernels ran. ``good``: those of the backend that was ``wanted``."""

    wanted: str
    good: bool
    text: str


def ran(trace: RunRecord) -> Iterator[RanBackend]:
    """Whose kernels ran, beside the log's word, which `ready.expect` was compared with, where there
    is one; nothing of kinds whose kernels are not known.
    """
    log = "\n".join(trace.summary["log"])
    names = [
        str(kernel["name"])
        for phase in trace.summary["phases"].values()
        for kernel in phase["kernels"]
    ]
    for kind, backends in _DATA["backends"].items():
        examples: dict[str, str] = {}  # by backend, one of its kernels that ran
        for name in filter(lambda name: kind_of(name) == kind, names):
            examples |= {
                each: name for each, known in backends.items() if _fits(known["ran"], name)
            }
        named = [each for each, known in backends.items() if re.search(known["log"], log)]
        named = named or list(examples)  # a log on a CPU names none
        for backend in [*filter(examples.get, named), *examples][:1]:
            good = backend in named
            but = "" if good else f", not {named[0]}"
            day = f"{trace.started:%Y-%m-%d} ({shorten(examples[backend], 70)})"
            yield RanBackend(named[0], good, f"{kind} ran: {backend}{but}, in the trace of {day}")


def proof(service: LiveService, container: Container) -> list[RanBackend]:
    """What the newest trace with the container's image and settings shows; nothing without one."""
    running = RunningService(service.deployment, service.name, container)
    for path in sorted(service.deployment.root.glob("results/*-trace-*.jsonl"), reverse=True):
        with suppress(EnvgenError, *MISSHAPEN):
            trace = load(path)
            if trace.summary["settings"] == running.settings():
                return list(ran(trace))
    return []


def rows_of(summary: JsonObject, named: int = 3) -> Iterator[tuple[KernelRow, list[KernelRow]]]:
    """Each kind, the most time first, with its ``named`` longest kernels; the gaps come last."""
    wall = float(summary.get("wall_us") or 0)
    kinds: dict[str, list[KernelRow]] = {}
    for kernel in summary.get("kernels", ()):
        name = str(kernel["name"])
        calls = int(kernel["calls"])
        spent = float(kernel["us"])
        row = _row(name, calls, spent, wall)
        kinds.setdefault(kind_of(name), []).append(row)
    summed = []
    for kind, rows in kinds.items():
        rows.sort(key=lambda row: -row.sum_us)
        calls = sum(row.calls for row in rows)
        spent = sum(row.sum_us for row in rows)
        whole = _row(kind, calls, spent, wall)
        summed.append((whole, rows[:named]))
    yield from sorted(summed, key=lambda pair: -pair[0].sum_us)
    if wall:
        busy = float(summary.get("busy_us") or 0)
        gaps = max(0.0, wall - busy)
        device = "gpu" if summary.get("device") == "gpu" else "cpu"
        yield _row(GAPS[device], 0, gaps, wall), []


def _row(name: str, calls: int, total: float, wall: float) -> KernelRow:
    share = 100 * total / wall if wall else 0.0
    return KernelRow(name, share, calls, total / calls if calls else 0.0, total)


def lines_of(summary: JsonObject, other: JsonObject | None = None) -> list[tuple[str, ...]]:
    """The table of a phase, its head first; beside ``other``'s shares where there is one."""
    against = {}
    for row, _ in rows_of(other or {}):
        against[row.name] = f"{row.share:.1f} %"
    lines: list[tuple[str, ...]] = [HEAD]
    for row, kernels in rows_of(summary):
        before = against.pop(row.name, "")
        lines.append((*_cells(row), before))
        for kernel in kernels:
            name, *rest = _cells(kernel)
            lines.append((f"  {name}", *rest, ""))
    for name, share in against.items():
        empty = ["-"] * 4
        lines.append((name, *empty, share))
    if other:
        return lines
    return [line[:-1] for line in lines]


def _cells(row: KernelRow) -> tuple[str, ...]:
    return (
        row.name if len(row.name) <= 70 else f"{row.name[:67]}...",
        f"{row.share:.1f} %",
        str(row.calls or "-"),
        f"{row.mean_us:,.1f}" if row.calls else "-",
        f"{row.sum_us:,.0f}",
    )
