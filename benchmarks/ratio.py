"""Time commands side by side: alternating runs, medians, ratios. Absolute times on a shared machine mean little."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Command:
    """One contender: what to call it, what to run, where. ``code`` is the exit code that counts as success."""

    label: str
    argv: Sequence[str]
    cwd: Path | None = None
    env: Mapping[str, str] | None = None
    code: int = 0


def once(command: Command) -> float:
    """Run it once and return the seconds it took. A command that fails ends the benchmark."""
    start = time.perf_counter()
    done = subprocess.run(command.argv, cwd=command.cwd, env=command.env, capture_output=True, check=False)
    seconds = time.perf_counter() - start
    if done.returncode != command.code:
        raise SystemExit(
            f"{command.label}: ended with {done.returncode}\n{done.stderr.decode(errors='replace')[-2000:]}"
        )
    return seconds


def ratio(subject: Command, against: Command, *, rounds: int = 15) -> tuple[float, float, float]:
    """Alternate both ``rounds`` times after one warm-up each.

    Returns (median seconds of subject, of against, median of the pairwise ratios). Pairs run right after each other, so
    a machine that slows down slows both.
    """
    once(subject), once(against)
    mine, theirs = [], []
    for _ in range(rounds):
        mine.append(once(subject))
        theirs.append(once(against))
    pairs = [a / b for a, b in zip(mine, theirs, strict=True)]
    return statistics.median(mine), statistics.median(theirs), statistics.median(pairs)


def row(what: str, subject: Command, against: Command, bound: float, *, rounds: int = 15) -> str:
    """Measure and return one line of the Markdown table."""
    mine, theirs, by = ratio(subject, against, rounds=rounds)
    verdict = "yes" if by <= bound else "**no**"
    times = f"{mine * 1000:.0f} ms | {against.label} | {theirs * 1000:.0f} ms"
    return f"| {what} | {times} | {by:.2f}x | {bound}x | {verdict} |"


HEADER = (
    "| what | median | against | median | ratio | wanted at most | held |\n| --- | --- | --- | --- | --- | --- | --- |"
)
