"""Plots as geometry: scales, ticks, lines and marks in the units of an SVG; the template draws them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from envgen.percentile import percentile

WIDTH, HEIGHT = 400.0, 260.0
LEFT, RIGHT, TOP, BOTTOM = 56.0, 12.0, 12.0, 44.0
# More steps than this can't be told apart in a plot of this size.
_MOST_STEPS = 200


@dataclass(frozen=True)
class Tick:
    """A labelled place on an axis."""

    at: str
    label: str


@dataclass(frozen=True)
class Mark:
    """A measured point: where it is, the ends of its error bar (empty: none), and what a reader is told of it."""

    x: str
    y: str
    low: str
    high: str
    text: str
    letter: str = ""


@dataclass(frozen=True)
class Line:
    """One run: ``index`` chooses colour, dash and marker; ``path`` is empty for marks alone."""

    index: int
    name: str
    path: str
    marks: tuple[Mark, ...]
    hollow: bool = False
    muted: bool = False


@dataclass(frozen=True)
class Plot:
    """All that the template needs to draw one plot."""

    title: str
    description: str
    x_label: str
    y_label: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    lines: tuple[Line, ...]
    markers: bool = True


@dataclass(frozen=True)
class Point:
    """A measured point in its own units. ``spread`` = standard deviation, NaN where there is none."""

    x: float
    y: float
    spread: float
    text: str
    letter: str = ""


def short(value: float) -> str:
    """A number for an axis: 0.5, 12, 4.1k."""
    if abs(value) >= 10_000:
        return f"{value / 1000:.4g}k"
    return f"{value:.4g}"


def steps(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) from at most ``low`` to at least ``high``."""
    # Values that are all but equal get a range that labels can tell apart.
    span = max(high - low, 1e-6 * max(abs(low), abs(high))) or 1.0
    raw = max(span / wanted, 1e-9)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next((m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999), 10 * power)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    if first == last:
        last += 1
    return [round(n * step, 12) for n in range(first, last + 1)]


def _number(value: float) -> str:
    return f"{value:.1f}"


def _scale(low: float, high: float, begin: float, end: float) -> Callable[[float], float]:
    span = (high - low) or 1.0
    return lambda value: begin + (value - low) / span * (end - begin)


def _y_axis(values: Sequence[float]) -> tuple[Callable[[float], float], tuple[Tick, ...]]:
    low, high = min(values), max(values)
    # From nought, unless all values lie so close together that nothing could be seen.
    ticks = steps(0.0 if 0 <= low < high / 2 else low, high)
    scale = _scale(ticks[0], ticks[-1], HEIGHT - BOTTOM, TOP)
    return scale, tuple(Tick(_number(scale(value)), short(value)) for value in ticks)


def _lengths_axis(values: Sequence[float]) -> tuple[Callable[[float], float], tuple[Tick, ...]]:
    """Token counts, doubled at equal distances, labelled where something was measured; 0 stands one doubling before."""
    distinct = sorted(set(values))
    nought = math.log2(next((value for value in distinct if value >= 1), 2.0)) - 1
    ends = [nought if value < 1 else math.log2(value) for value in (distinct[0], distinct[-1])]
    inner = _scale(ends[0], ends[1], LEFT + 14, WIDTH - RIGHT - 14)
    if len(distinct) == 1:
        inner = _constant((LEFT + WIDTH - RIGHT) / 2)

    def place(value: float) -> float:
        return inner(nought if value < 1 else math.log2(value))

    ticks: list[Tick] = []
    free = -math.inf
    for value in distinct:
        if place(value) >= free:
            ticks.append(Tick(_number(place(value)), short(value)))
            free = place(value) + 30
    return place, tuple(ticks)


def _constant(place: float) -> Callable[[float], float]:
    return lambda _value: place


def by_length(title: str, x_label: str, y_label: str, runs: Sequence[tuple[int, str, Sequence[Point]]]) -> Plot:
    """A figure over token counts: a line and error bars a run. ``runs`` = (index, name, points); none may be empty."""
    everything = [point for _i, _n, points in runs for point in points]
    x, x_ticks = _lengths_axis([point.x for point in everything])
    y, y_ticks = _y_axis([v for p in everything for v in (p.y, *_ends(p))])
    lines = []
    for index, name, points in runs:
        marks = tuple(_mark(point, x, y) for point in sorted(points, key=lambda p: p.x))
        path = "M" + " L".join(f"{mark.x} {mark.y}" for mark in marks) if len(marks) > 1 else ""
        lines.append(Line(index, name, path, marks))
    return Plot(title, _described(runs), x_label, y_label, x_ticks, y_ticks, tuple(lines))


def _ends(point: Point) -> tuple[float, ...]:
    return () if math.isnan(point.spread) else (point.y - point.spread, point.y + point.spread)


def _mark(point: Point, x: Callable[[float], float], y: Callable[[float], float]) -> Mark:
    ends = [_number(y(value)) for value in _ends(point)] or ["", ""]
    return Mark(_number(x(point.x)), _number(y(point.y)), ends[0], ends[1], point.text, point.letter)


def _described(runs: Sequence[tuple[int, str, Sequence[Point]]]) -> str:
    return "; ".join(f"{name}: {', '.join(point.text for point in points)}" for _i, name, points in runs)


def distribution(title: str, x_label: str, runs: Sequence[tuple[int, str, Sequence[float]]]) -> Plot:
    """How many of a run's values are at most x: a staircase a run. ``runs`` = (index, name, values); none empty."""
    ticks = steps(min(min(v) for _i, _n, v in runs), max(max(v) for _i, _n, v in runs))
    x = _scale(ticks[0], ticks[-1], LEFT, WIDTH - RIGHT)
    y = _scale(0.0, 100.0, HEIGHT - BOTTOM, TOP)
    lines, told = [], []
    for index, name, values in runs:
        lines.append(Line(index, name, _stairs(sorted(values), x, y), ()))
        told.append(f"{name}: " + ", ".join(f"p{q} {percentile(values, q):.1f}" for q in (50, 95, 99)))
    return Plot(
        title,
        "; ".join(told),
        x_label,
        "% of all",
        tuple(Tick(_number(x(value)), short(value)) for value in ticks),
        tuple(Tick(_number(y(value)), short(value)) for value in (0.0, 25.0, 50.0, 75.0, 100.0)),
        tuple(lines),
        markers=False,
    )


def _stairs(ordered: Sequence[float], x: Callable[[float], float], y: Callable[[float], float]) -> str:
    count = len(ordered)
    chosen = (
        range(count)
        if count <= _MOST_STEPS
        else [round(i * (count - 1) / (_MOST_STEPS - 1)) for i in range(_MOST_STEPS)]
    )
    path = f"M{_number(x(ordered[0]))} {_number(y(0))}"
    for place in chosen:
        path += f" H{_number(x(ordered[place]))} V{_number(y(100 * (place + 1) / count))}"
    return path


@dataclass(frozen=True)
class Group:
    """Points of a history that look alike. ``muted`` = in the page's grey, not in the colour of ``index``."""

    index: int
    name: str
    points: Sequence[Point]
    hollow: bool = False
    muted: bool = False


def history(title: str, y_label: str, days: Sequence[str], groups: Sequence[Group]) -> Plot:
    """A figure run by run: a point's x counts the runs from 0, ``days`` names the day of each; no group is empty."""
    everything = [point for group in groups for point in group.points]
    middle = (LEFT + WIDTH - RIGHT) / 2
    x = _scale(0, len(days) - 1, LEFT + 14, WIDTH - RIGHT - 24) if len(days) > 1 else _constant(middle)
    y, y_ticks = _y_axis([v for p in everything for v in (p.y, *_ends(p))])
    lines = tuple(
        Line(
            group.index,
            group.name,
            "",
            tuple(_mark(point, x, y) for point in sorted(group.points, key=lambda p: (p.x, p.y))),
            group.hollow,
            group.muted,
        )
        for group in groups
    )
    told = _described([(group.index, group.name, group.points) for group in groups])
    return Plot(title, told, "runs in the order of their dates (UTC)", y_label, _day_ticks(days, x), y_ticks, lines)


def _day_ticks(days: Sequence[str], x: Callable[[float], float]) -> tuple[Tick, ...]:
    """The first run of a day carries its name, where there is room."""
    ticks: list[Tick] = []
    free = -math.inf
    for slot, day in enumerate(days):
        place = x(slot)
        if (slot == 0 or day != days[slot - 1]) and place >= free:
            ticks.append(Tick(_number(place), day))
            free = place + 70
    return tuple(ticks)
