"""The first answer on a new machine: `envgen up --yes` beside its steps in order.

usage: python benchmarks/first_answer.py [SECONDS [PAIRS]]

The weights take SECONDS to download (default: as long as the image takes to build, the first time).
Only what takes as long as something else can be saved, so the other figures say little on another
machine. Each pair starts from nothing
twice: lock, build, model pull and up one after the other, then up alone, and the other way round in
the next pair. See benchmarks/start_lab.py.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/support"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/engine"))
from start_lab import Lab, lab

RATE = 1 << 20  # bytes per second


def in_order(made: Lab) -> float:
    """Seconds of the four commands."""
    parts = {
        words[0]: made.envgen(*words)
        for words in (("lock",), ("build",), ("model", "pull"), ("up", "serve"))
    }
    print(
        "  in order:",
        ", ".join(f"{name} {seconds:.0f} s" for name, seconds in parts.items()),
        flush=True,
    )
    return sum(parts.values())


def together(made: Lab) -> float:
    """Seconds of the one command."""
    seconds = made.envgen("up", "serve", "--yes")
    print(f"  up --yes: {seconds:.0f} s", flush=True)
    return seconds


def main(arguments: list[str]) -> None:
    """Print each run and the ratio of the medians."""
    weights, pairs = (
        int(arguments[0]) if arguments else 0,
        int(arguments[1]) if len(arguments) > 1 else 2,
    )
    ways = {"in order": in_order, "up --yes": together}
    took: dict[str, list[float]] = {name: [] for name in ways}
    with lab(weights * RATE, RATE) as made:
        for pair in range(pairs):
            for name in list(ways) if pair % 2 == 0 else list(ways)[::-1]:
                made.forget()
                took[name].append(ways[name](made))
    ratio = median(took["in order"]) / median(took["up --yes"])
    print(
        f"weights of {weights or 'the time of a build'}: in order / up --yes = {ratio:.2f} ({pairs} pairs)"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
