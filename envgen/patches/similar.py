"""Where in a file the lines that a hunk looks for most likely are, so that both sides can be shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def most_similar(expected: Sequence[str], lines: Sequence[str]) -> tuple[int, tuple[str, ...]]:
    """(line number from 1, lines) of the stretch that shares most lines with ``expected``; (0, ()) when none does.

    A rare line weighs more than one that stands everywhere (``else:``, a bracket, nothing).
    """
    common = Counter(line.strip() for line in lines)
    weights = [1 / common[line.strip()] if line.strip() else 0.0 for line in lines]
    wanted = Counter(line.strip() for line in expected)
    size = min(len(expected), len(lines))
    best, at = 0.0, -1
    for start in range(len(lines) - size + 1):
        left = dict(wanted)
        score = 0.0
        for position in range(start, start + size):
            line = lines[position].strip()
            if left.get(line, 0):
                left[line] -= 1
                aligned = expected[position - start].strip() == line
                score += weights[position] * (1.1 if aligned else 1.0)
        if score > best + 1e-9:
            best, at = score, start
    if at < 0:
        return 0, ()
    return at + 1, tuple(lines[at : at + size])
