"""`envgen results`: list and compare recorded runs."""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from envgen.app.measure import default_folder
from envgen.bench.compare import FigureRow, compare, differing, sections
from envgen.bench.record import RunRecord, plain, resolve, runs, utc
from envgen.cli import FullGroup
from envgen.cli.common import answer, json_option
from envgen.errors import UsageError
from envgen.text import progress, table

folder_option = click.option("--folder", type=click.Path(path_type=Path), metavar="DIR",
                             help="The folder of records (default: results/ beside envgen.yaml, or .).")  # fmt: skip
HEAD = ("RUN", "WHEN (UTC)", "KIND", "WHAT", "OUTCOME")


@click.group(cls=FullGroup)
def command() -> None:
    """List and compare the recorded runs of the commands that measure.

    A RUN is the beginning of an ID, `latest`, `latest~1` (the one before), or a file.

    \b
    Examples:
      envgen results list
      envgen results compare latest~1 latest
    """


@command.command("list")
@folder_option
@json_option
def list_(folder: Path | None) -> int:
    """List all runs, oldest first: time, kind, server and outcome.

    \b
    Example:
      envgen results list
    """
    where = folder or default_folder()
    records, bad = runs(where)
    for line in bad:
        progress(f"left out: {line}")
    listed = [{**_header(one), "summary": plain(one.summary)} for one in records]
    return answer({"folder": str(where), "damaged": bad, "runs": listed}, _table(where, records))


def _table(where: Path, records: Sequence[RunRecord]) -> Iterator[str]:
    if not records:
        return progress(f"no runs in {where}")
    yield from table([HEAD, *map(_row, records)])


def _row(record: RunRecord) -> Sequence[str]:
    return (record.id, f"{record.started:%Y-%m-%d %H:%M}", record.kind, record.title, record.outcome)


@command.command("compare")
@click.argument("runs", nargs=-1, required=True, metavar="A B [C]...")
@folder_option
@json_option
def compare_(runs: tuple[str, ...], folder: Path | None) -> int:
    """Compare two or more runs: median, least and greatest of each figure, how far it is from the first run's, and what
    differs in their environments.

    \b
    Example:
      envgen results compare latest~1 latest
    """
    if not 2 <= len(runs) <= 26:
        raise UsageError("compare takes 2 to 26 runs", hint="envgen results compare latest~1 latest")
    records = [resolve(folder or default_folder(), name) for name in runs]
    names = string.ascii_uppercase[: len(records)]
    rows, apart = compare(records), differing(records, names)
    document = {"runs": {name: _header(record) for name, record in zip(names, records, strict=True)},
                "figures": [row.plain(names) for row in rows], "differing": apart}  # fmt: skip
    return answer(document, _compared(records, names, rows, apart))


def _compared(
    records: Sequence[RunRecord], names: str, rows: Sequence[FigureRow], apart: Sequence[str]
) -> Iterator[str]:
    yield from table([("", *HEAD), *((name, *_row(record)) for name, record in zip(names, records, strict=True))])
    for title, lines in sections(rows, names):
        yield from ("", title, *table(lines, right=range(1, 2 * len(names))))
    yield from ("", "What differed in environments and parameters", *(apart or ["nothing that was recorded"]))


def _header(record: RunRecord) -> dict[str, str]:
    return {"id": record.id, "kind": record.kind, "title": record.title, "outcome": record.outcome,
            "started": utc(record.started), "file": str(record.path)}  # fmt: skip
