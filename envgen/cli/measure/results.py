"""`envgen results`: list and compare recorded runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

from envgen.app.measure import results_folder
from envgen.app.results import write_page
from envgen.app.session import Session
from envgen.bench.compare import SIDES, FigureRow, compare, differing, sections
from envgen.bench.record import RunRecord, plain, resolve, runs, utc
from envgen.cli import FullGroup
from envgen.cli.common import answer, json_option, reporting, service_argument
from envgen.text import progress, table, visible

HEAD = ("RUN", "WHEN (UTC)", "KIND", "WHAT", "OUTCOME")


@click.group(cls=FullGroup)
def command() -> None:
    """List and compare the recorded runs of the commands that measure.

    A RUN is the beginning of an ID, `latest`, `latest~1` (the one before), or a file.

    \b
    Examples:
      envgen results list
      envgen results compare latest~1 latest
      envgen results html
    """


@command.command("list")
@json_option
def list_() -> int:
    """List all runs, oldest first: time, kind, server and outcome.

    \b
    Example:
      envgen results list
    """
    where = results_folder()
    records, bad = runs(where)
    for line in bad:
        progress(f"left out: {line}")
    listed = [{**_header(one), "summary": plain(one.summary)} for one in records]
    document = {"folder": str(where), "damaged": bad, "runs": listed}
    return answer(document, _table(where, records))


def _table(where: Path, records: Sequence[RunRecord]) -> Iterator[str]:
    if not records:
        return progress(f"no runs in {where}")
    yield from table([HEAD, *map(_row, records)])


def _row(record: RunRecord) -> Sequence[str]:
    return (
        record.id,
        f"{record.started:%Y-%m-%d %H:%M}",
        record.kind,
        record.title,
        record.outcome,
    )


@command.command("compare")
@click.argument("a")
@click.argument("b")
@json_option
def compare_(a: str, b: str) -> int:
    """Compare two runs: median, least and greatest of each figure, how far B's median is from A's,
    and what differs in their environments.

    \b
    Example:
      envgen results compare latest~1 latest
    """
    folder = results_folder()
    both = resolve(folder, a), resolve(folder, b)
    sides = dict(zip(SIDES, both, strict=True))
    rows = compare(*both)
    apart = differing(*both)
    headers = {}
    targets = {}
    for name, record in sides.items():
        headers[name] = _header(record)
        targets[name] = record.summary.get("targets", [])
    document = {
        "runs": headers,
        "figures": [row.plain() for row in rows],
        "targets": targets,
        "differing": apart,
    }
    return answer(document, _compared(sides, rows, apart))


def _compared(
    sides: Mapping[str, RunRecord], rows: Sequence[FigureRow], apart: Sequence[str]
) -> Iterator[str]:
    runs = [(name, *_row(record)) for name, record in sides.items()]
    yield from table([("", *HEAD), *runs])
    for title, lines in sections(rows):
        yield from ("", title, *table(lines, right=range(1, 4)))
    targets = _targets(sides)
    if len(targets) > 1:
        gaps = table(targets, right=range(1, 3))
        yield from ("", "Targets", *map(visible, gaps))
    yield from ("", "What differed in environments and parameters")
    yield from apart or ["nothing that was recorded"]


def _targets(records: Mapping[str, RunRecord]) -> list[Sequence[str]]:
    """How far each run is from the targets that it had, the head first."""
    gaps: dict[str, dict[str, str]] = {}
    for side, record in records.items():
        for row in record.summary.get("targets", ()):
            wanted = f"{row['wanted']:g} {row['target']}"
            name = f"{wanted} ({row['figure']}), {row['test']}"
            gap = gaps.setdefault(name, {})
            gap[side] = f"{row['percent']:+.0f} %"
    lines: list[Sequence[str]] = [("", *SIDES)]
    for name, sides in gaps.items():
        cells = [sides.get(side, "-") for side in SIDES]
        lines.append((name, *cells))
    return lines


def _header(record: RunRecord) -> dict[str, str]:
    return {
        "id": record.id,
        "kind": record.kind,
        "title": record.title,
        "outcome": record.outcome,
        "started": utc(record.started),
        "file": str(record.path),
    }


@command.command("html")
@reporting
@service_argument
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    help="The file to write (default: results/index.html of the project).",
)
def html_(session: Session, service: str | None, output: Path | None) -> int:
    """Write a page of all results of SERVICE: one file that opens without a network.

    It has the matrix with its targets, speed over days, by concurrency and by depth, answers,
    phases of starts, traces, and for each row what it was made of. It runs no code.

    \b
    Examples:
      envgen results html
      envgen results html serve -o /tmp/results.html
    """
    path, rows = write_page(session, service, output)
    document = {"file": str(path), "rows": [row.plain() for row in rows]}
    return answer(document, [f"wrote {path}", path.absolute().as_uri()])
