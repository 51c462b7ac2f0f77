"""The page of a project's results: one HTML file that needs no network and runs no code.

Everything in a record is text of strangers: the template escapes it, and the page's policy allows
its own style alone, by digest.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from envgen.bench.compare import median_of, number
from envgen.bench.matrix import MatrixRow, strangers
from envgen.bench.record import RunRecord
from envgen.bench.trace import rows_of as kernel_rows
from envgen.files import data_dir

WIDTH, HEIGHT = 640, 220  # of a chart, in its own units
COLORS = 10  # classes c0 to c9 of the style
MOST = 40  # marks of one chart


@dataclass(frozen=True)
class Bar:
    """A bar, or a part of a stacked one. ``x`` and ``width``: of WIDTH."""

    label: str
    value: str
    x: float
    width: float
    color: int


@dataclass(frozen=True)
class BarRow:
    """A line of a bar chart."""

    label: str
    bars: tuple[Bar, ...]
    note: str = ""


@dataclass(frozen=True)
class Mark:
    """A point of a chart, or a target's line."""

    label: str
    x: float
    y: float
    color: int


@dataclass(frozen=True)
class Chart:
    """Points over an axis. ``lines``: targets, each at its height."""

    title: str
    marks: tuple[Mark, ...]
    lines: tuple[Mark, ...] = ()
    most: str = ""
    left: str = ""
    right: str = ""
    names: tuple[str, ...] = ()  # of the colors, in their order


@dataclass(frozen=True)
class TargetLine:
    """A target of the matrix. ``decode``: where it is drawn; 0: nowhere."""

    name: str
    decode: float
    text: str


def decode_bars(
    rows: Sequence[MatrixRow], targets: Sequence[TargetLine]
) -> tuple[list[BarRow], list[Mark]]:
    """A bar for each measured row that targets are for, and a line for each, on one scale."""
    measured = [row for row in rows if row.decode_tps and _is_alone(row.test)]
    values = [row.decode_tps or 0.0 for row in measured]
    values += [target.decode for target in targets]
    scale = WIDTH / max(values, default=1.0)
    bars = []
    for row in measured[:MOST]:
        value = row.decode_tps or 0.0
        bar = Bar(row.test, f"{value:,.1f}", 0, value * scale, 0)
        note = f"{row.release} {row.day}, {row.rank}".strip()
        bars.append(BarRow(f"{row.variant} {row.test}", (bar,), note))
    lines = []
    for target in targets:
        name = f"{target.name} {target.decode:g}"
        lines.append(Mark(name, target.decode * scale, 0, 3))
    return bars, lines


def _is_alone(test: str) -> bool:
    """Whether the test is of one request without context, as the targets that are drawn."""
    return " @ " not in test and " c" not in test


def stacked(parts_of: Mapping[str, Mapping[str, float]], unit: str) -> list[BarRow]:
    """Bars made of parts, all on one scale; a part has the same color in each."""
    colors: dict[str, int] = {}
    longest = 0.0
    for parts in parts_of.values():
        longest = max(longest, sum(parts.values()))
        for name in parts:
            colors.setdefault(name, len(colors) % COLORS)
    rows = []
    for label, parts in list(parts_of.items())[:MOST]:
        at = 0.0
        bars = []
        for name, value in parts.items():
            width = value / longest * WIDTH if longest else 0.0
            shown = f"{value:,.1f} {unit}"
            bars.append(Bar(name, shown, at, width, colors[name]))
            at += width
        whole = f"{sum(parts.values()):,.1f} {unit}"
        rows.append(BarRow(label, tuple(bars), whole))
    return rows


def _height(value: float, most: float) -> float:
    return HEIGHT - value / most * (HEIGHT - 10)


def _marks(points: Sequence[tuple[float, float, str, int]], most: float) -> tuple[Mark, ...]:
    """Marks of points: how far along, how high, what it is, its color."""
    longest = max(x for x, *_ in points) or 1.0
    marks = []
    for x, value, label, color in points:
        along = 10 + x / longest * (WIDTH - 20)
        height = _height(value, most)
        marks.append(Mark(label, along, height, color))
    return tuple(marks)


def over_time(records: Iterable[RunRecord], targets: Sequence[TargetLine]) -> Chart:
    """The decode speed of each bench with one request and no context, by its day."""
    points = []
    for run in records:
        for cell in run.summary.get("cells", ()) if run.kind == "bench" else ():
            value = median_of(cell, "decode_tps")
            test = str(cell.get("test", ""))
            if value is not None and _is_alone(test):
                points.append((run.started, value, f"{run.title} {test}"))
    points = points[-MOST * 5 :]
    if not points:
        return Chart("", ())
    titles = list(dict.fromkeys(title for _, _, title in points))
    first = points[0][0]  # records are ordered
    last = points[-1][0]
    values = [value for _, value, _ in points]
    values += [target.decode for target in targets]
    most = max(values) or 1.0
    marked = []
    for when, value, title in points:
        label = f"{title}: {value:,.1f} t/s, {when:%Y-%m-%d}"
        color = titles.index(title) % COLORS
        marked.append(((when - first).total_seconds(), value, label, color))
    lines = []
    for place, one in enumerate(targets):  # their names stand side by side
        x = place % 4 * 156.0  # on a telephone, too
        lines.append(Mark(f"{one.name} {one.decode:g}", x, _height(one.decode, most), 3))
    days = (f"{first:%Y-%m-%d}", f"{last:%Y-%m-%d}")
    names = tuple(titles[:COLORS])
    return Chart(
        "Decode over days, tokens/s",
        _marks(marked, most),
        tuple(lines),
        f"{most:,.0f}",
        *days,
        names,
    )


def by_size(run: RunRecord, axis: str, title: str) -> Chart | None:
    """The figures of one bench over its concurrency or depth, where the other one is its least;
    None where it has one size.
    """
    other = "context_tokens" if axis == "concurrency" else "concurrency"
    cells = run.summary.get("cells", ())
    others = [number(cell.get(other)) or 0.0 for cell in cells]
    least = min(others, default=0.0)
    points = []
    for cell, its_other in zip(cells, others, strict=True):
        if its_other > least:
            continue
        name = "total_tps" if "total_tps" in cell else "decode_tps"
        value = median_of(cell, name)
        size = number(cell.get(axis))
        if value is not None and size is not None:
            points.append((size, value, f"{cell.get('test', '')}: {value:,.1f}", 0))
    sizes = {size for size, *_ in points}
    if len(sizes) < 2:
        return None
    most = max(value for _, value, *_ in points) or 1.0
    marks = _marks(points[:MOST], most)
    return Chart(f"{title}, {run.title}", marks, (), f"{most:,.0f}", "0", f"{max(sizes):,.0f}")


def traces_of(records: Sequence[RunRecord]) -> dict[str, list[BarRow]]:
    """The newest trace of each profile and variant: a stacked bar for prefill and one for decode."""
    newest = {
        run.title: run for run in records if run.kind == "trace" and run.summary.get("phases")
    }
    pages = {}
    for title, run in newest.items():
        parts = {}
        for phase, summary in run.summary["phases"].items():
            parts[str(phase)] = {row.name: row.share for row, _ in kernel_rows(summary)}
        pages[title] = stacked(parts, "%")
    return pages


def render(
    title: str,
    made: str,
    rows: Sequence[MatrixRow],
    records: Sequence[RunRecord],
    targets: Sequence[TargetLine],
    phases: Mapping[str, Mapping[str, float]],
) -> str:
    """The page. ``made``: when and by what; ``phases``: label -> seconds by phase of a start."""
    drawn = [one for one in targets if one.decode]
    bars, lines = decode_bars(rows, drawn)
    newest = [run for run in records if run.kind == "bench"][-1:]
    axes = {"concurrency": "Speed by requests at once", "context_tokens": "Speed by depth"}
    sizes = [by_size(run, *axis) for run in newest for axis in axes.items()]
    answers = {
        run.title: run for run in records if run.kind == "answers" and run.summary.get("rows")
    }
    style = (data_dir("templates") / "results.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return (
        strangers(autoescape=True)
        .get_template("results.html.j2")
        .render(
            title=title,
            made=made,
            style=style,
            digest=digest,
            rows=rows,
            bars=bars,
            lines=lines,
            targets=targets,
            time=over_time(records, drawn),
            sizes=[chart for chart in sizes if chart],
            answers=answers,
            starts=stacked(phases, "s"),
            traces=traces_of(records),
            width=WIDTH,
            height=HEIGHT,
        )
    )
