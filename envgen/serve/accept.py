"""`envgen accept`: the acceptance list of a serving environment, as one verdict.

It is stricter than smoke and stress: what could not be checked is not accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envgen.logpattern import LogPattern
from envgen.serve.bench import BenchPlan, Cell, bench
from envgen.serve.smoke import smoke
from envgen.serve.stress import StressPlan, stress
from envgen.serve.trial import FAILED, PASSED, UNKNOWN, Criterion, Trial, criterion
from envgen.text import shorten

_LONGEST_LINE = 4000


@dataclass(frozen=True)
class Wishes:
    """What is accepted. ``references``: decode t/s of other engines by name; ``tolerance``: how far below is good."""

    stress: StressPlan
    bench: BenchPlan
    references: Mapping[str, float]
    tolerance: float = 0.2
    explanation: str = ""  # documented by the user: why the decode is slower than the references
    expect: Mapping[str, str] | None = None  # None: no service, so no profile to ask
    forbid: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Accepted:
    """The parts of the verdict, by the name of the part that said it."""

    criteria: tuple[tuple[str, Criterion], ...]
    cells: tuple[Cell, ...]
    load: Mapping[str, Any]

    @property
    def verdict(self) -> str:
        """``passed`` when every criterion was checked and holds."""
        return PASSED if all(one.verdict == PASSED for _, one in self.criteria) else FAILED


def accept(trial: Trial, wishes: Wishes, log: Callable[[], str] | None) -> Accepted:
    """Run all three and judge. ``log``: the whole output of the server; None where there is no container."""
    found: list[tuple[str, Criterion]] = []
    trial.part = "smoke"
    trial.say("smoke")
    found += [("smoke", one) for one in smoke(trial)]
    trial.part = "stress"
    trial.say("stress")
    criteria, load = stress(trial, wishes.stress)
    found += [("stress", one) for one in criteria]
    trial.part = "bench"
    trial.say("bench")
    cells = bench(trial, wishes.bench)
    found += [("decode", one) for one in decode(cells, wishes)]
    trial.part = ""
    found += [("backends", one) for one in backends(wishes.expect, wishes.forbid, log() if log else None)]
    after = trial.vitals()
    if after is not None:
        seen = f"{len(after.zombies)}" + (f": {', '.join(after.zombies)}" if after.zombies else "")
        found.append(("end", criterion("zombie processes at the end", not after.zombies, seen, "0")))
    return Accepted(tuple(found), tuple(cells), load)


def decode(cells: Sequence[Cell], wishes: Wishes) -> list[Criterion]:
    """Is the decode as fast as the references, within the tolerance, or is it explained why it isn't?"""
    name = "decode throughput"
    failed = sum(cell.failed for cell in cells)
    if failed:
        return [criterion(name, False, f"{failed} requests failed: {next(c.fault for c in cells if c.fault)}", "0")]
    single = [cell for cell in cells if cell.concurrency == 1 and "decode_tps" in cell.figures]
    if not single:
        return [Criterion(name, UNKNOWN, "no decode throughput was measured for one request at a time", "a figure")]
    best = max(single, key=lambda cell: cell.figures["decode_tps"].mean)
    seen = f"{best.figures['decode_tps']} t/s (pp{best.prompt_tokens} tg{best.output_tokens})"
    if not wishes.references:
        hint = "nothing to compare with: give --reference NAME=T/S, such as --reference llama.cpp=57.85"
        return [Criterion(name, UNKNOWN, seen, "within reach of a reference", hint)]
    found = []
    for other, speed in wishes.references.items():
        least = speed * (1 - wishes.tolerance)
        good = best.figures["decode_tps"].mean >= least
        wanted = f"at least {least:,.2f} t/s: {other} has {speed:,.2f}, less {wishes.tolerance:.0%}"
        note = f"slower, and explained: {wishes.explanation}" if not good and wishes.explanation else ""
        found.append(criterion(f"{name} against {other}", good or bool(note), seen, wanted, note))
    return found


def backends(expect: Mapping[str, str] | None, forbid: Mapping[str, str] | None, log: str | None) -> list[Criterion]:
    """Does the log show what the profile expects, and nothing that it forbids?"""
    name, wanted = "backends in the log", "as the profile expects"
    if log is None:
        return [Criterion(name, UNKNOWN, "no container is known: name it with --container", wanted)]
    if not expect and not forbid:
        return [Criterion(name, UNKNOWN, "the profile expects nothing", wanted, "set ready.expect of the service")]
    lines = [line[:_LONGEST_LINE] for line in log.splitlines()]
    found = []
    for key, pattern in (expect or {}).items():
        seen = _first(pattern, lines)
        found.append(criterion(f"log shows {key}", bool(seen), seen or "no line of it", pattern))
    for key, pattern in (forbid or {}).items():
        seen = _first(pattern, lines)
        found.append(criterion(f"log is free of {key}", not seen, seen or "no line of it", f"not {pattern}"))
    return found


def _first(pattern: str, lines: Sequence[str]) -> str:
    matcher = LogPattern(pattern)
    found = next((line for line in lines if matcher.found_in(line)), "")
    return shorten(found, 120)
