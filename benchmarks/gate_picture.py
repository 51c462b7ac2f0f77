"""docs/compiling.svg: the memory of all objects of fused_moe_120 over time, with a fixed number of
jobs and gated.

usage: python benchmarks/gate_picture.py > docs/compiling.svg
"""

from __future__ import annotations

import sys
from xml.sax.saxutils import escape

from gate import GIB, MIB, Compiled, Outcome, fixed, gated, load_gate, simulate, trace

WIDTH, HEIGHT, LEFT, BOTTOM = 860, 250, 56, 40
BUDGET = 24  # GiB
SCALE = 28.0  # GiB at the top
STEP = 4  # seconds between two points
COLOURS = {"sm120": "#b5443a", "sm80": "#d99a3d", "other": "#6b8fb5"}


def kind(one: Compiled) -> str:
    """The heavy kernels of two families, and all others."""
    return (
        "sm120"
        if "grouped_sm120" in one.name
        else "sm80"
        if "grouped_sm80" in one.name
        else "other"
    )


def stacked(outcome: Outcome, seconds: float) -> list[str]:
    """One area for each kind of object, the heaviest at the bottom."""
    lines = []
    rows = outcome.kinds[::STEP]
    below = [0.0] * len(rows)
    for name, colour in COLOURS.items():
        above = [base + row.get(name, 0) / 1024 for base, row in zip(below, rows, strict=True)]
        points = [*enumerate(above), *reversed(list(enumerate(below)))]
        path = " ".join(f"{x(n * STEP, seconds):.0f},{y(value):.0f}" for n, value in points)
        lines.append(f'<polygon points="{path}" fill="{colour}"/>')
        below = above
    return lines


def x(second: float, seconds: float) -> float:
    """Where a second lies."""
    return LEFT + second / seconds * (WIDTH - LEFT - 16)


def y(gib: float) -> float:
    """Where so much memory lies."""
    return HEIGHT - BOTTOM - gib / SCALE * (HEIGHT - BOTTOM - 34)


def text(
    left: float, top: float, words: str, size: int = 12, anchor: str = "start", fill: str = "#334"
) -> str:
    """One line of text."""
    place = f'x="{left:.0f}" y="{top:.0f}" font-size="{size}" text-anchor="{anchor}" fill="{fill}"'
    return f"<text {place}>{escape(words)}</text>"


def panel(title: str, outcome: Outcome, seconds: float) -> list[str]:
    """One build: title, axes, areas, the budget."""
    lines = [
        text(
            LEFT, 20, f"{title}: {outcome.seconds:.0f} s, at most {outcome.peak / 1024:.1f} GiB", 14
        )
    ]
    lines += stacked(outcome, seconds)
    for gib in (0, 8, 16, 24):
        lines.append(text(LEFT - 6, y(gib) + 4, f"{gib} GiB", 11, "end"))
    for second in range(0, int(seconds) + 1, 200):
        lines.append(text(x(second, seconds), HEIGHT - BOTTOM + 16, f"{second} s", 11, "middle"))
    for gib, dashes in ((BUDGET, "5 4"), (0, "none")):
        ends = f'x1="{LEFT}" y1="{y(gib):.0f}" x2="{WIDTH - 16}" y2="{y(gib):.0f}"'
        lines.append(f'<line {ends} stroke="#334" stroke-dasharray="{dashes}"/>')
    return lines


def main() -> None:
    """Two panels and a legend."""
    objects, gate = trace(), load_gate()
    before = simulate(objects, fixed(BUDGET // 8), kind=kind)
    after = simulate(objects, gated(gate, BUDGET * (GIB // MIB), 20), kind=kind)
    seconds = max(before.seconds, after.seconds)
    total = 2 * HEIGHT + 30
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {total}" font-family="DejaVu Sans, sans-serif">',
        f"<title>Memory of the compilers of fused_moe_120 with a budget of {BUDGET} GiB</title>",
        f'<rect width="{WIDTH}" height="{total}" fill="#ffffff"/>',
        *panel(f"{BUDGET // 8} jobs ({BUDGET} GiB / 8)", before, seconds),
        f'<g transform="translate(0 {HEIGHT})">',
        *panel("compile-gate", after, seconds),
        "</g>",
    ]
    left = LEFT
    for name, words in (
        ("sm120", "5 objects of 7 to 10 GiB"),
        ("sm80", "9 of 5 to 7 GiB"),
        ("other", "all others"),
    ):
        out.append(
            f'<rect x="{left}" y="{total - 24}" width="12" height="12" fill="{COLOURS[name]}"/>'
        )
        out.append(text(left + 18, total - 14, words))
        left += 220
    out.append("</svg>")
    sys.stdout.write("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
