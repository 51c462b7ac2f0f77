"""`envgen results`: records of runs: list, show, compare."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from envgen.app.measure import default_folder
from envgen.bench.compare import Comparison, compare, sections
from envgen.bench.record import Record, plain, resolve, runs, utc
from envgen.cli import FullGroup
from envgen.cli.common import answer, json_option
from envgen.cli.measure.bench import require_extra
from envgen.errors import UsageError
from envgen.text import progress, table

folder_option = click.option("--folder", type=click.Path(path_type=Path), metavar="DIR",
                             help="The folder of records (default: results/ beside envgen.yaml, or here).")  # fmt: skip
_MEASURED = ("bench", "accept")  # kinds whose figures are of one make


@click.group(cls=FullGroup)
def command() -> None:
    """List, show and compare the recorded runs of smoke, accept, bench and trace.

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
    found, bad = runs(where)
    for line in bad:
        progress(f"left out: {line}")
    listed = [{**_who(one), "summary": plain(one.summary)} for one in found]
    return answer({"folder": str(where), "damaged": bad, "runs": listed}, _table(where, found))


def _table(where: Path, found: Sequence[Record]) -> Iterator[str]:
    if not found:
        return progress(f"no runs in {where}")
    rows = [("RUN", "WHEN (UTC)", "KIND", "WHAT", "OUTCOME")]
    yield from table([*rows, *((one.id, f"{one.started:%Y-%m-%d %H:%M}", one.kind, one.title, one.outcome)
                               for one in found)])  # fmt: skip


@command.command("show")
@click.argument("run", default="latest")
@folder_option
@json_option
def show(run: str, folder: Path | None) -> int:
    """Show the record of RUN (default: the newest): outcome, figures, criteria, parameters, environment.

    \b
    Example:
      envgen results show 1a2b
    """
    found = _compared([run], folder)
    (record,) = found.runs.values()
    document = {**plain(vars(record)), "started": utc(record.started), "figures": _rows(found)}
    return answer(document, _lines(found))


@command.command("compare")
@click.argument("runs", nargs=-1, required=True, metavar="A B [C]...")
@folder_option
@json_option
def compare_(runs: tuple[str, ...], folder: Path | None) -> int:
    """Compare two or more runs: figures, significance against the first run, and differences in environment.

    \b
    Example:
      envgen results compare latest~1 latest
    """
    require_extra()
    if not 2 <= len(runs) <= 26:
        raise UsageError("compare takes 2 to 26 runs", hint="envgen results compare latest~1 latest")
    found = _compared(runs, folder)
    named = {name: _who(one) for name, one in found.runs.items()}
    return answer({"runs": named, "figures": _rows(found), "differing": found.differing}, _lines(found))


def _compared(names: Sequence[str], folder: Path | None) -> Comparison:
    """The records, compared."""
    records = [resolve(folder or default_folder(), name) for name in names]
    if len({record.path.resolve() for record in records}) < len(records):
        raise UsageError("the same run is named twice", hint="envgen results list")
    unlike = {kind: one for one in records for kind in [_MEASURED if one.kind in _MEASURED else (one.kind,)]}
    if len(unlike) > 1:
        kinds = " and ".join(f"{one.id} is of kind {one.kind}" for one in unlike.values())
        raise UsageError(f"these runs can't be compared: {kinds}", hint="envgen results list shows kinds")
    return compare(records)


def _who(record: Record) -> dict[str, str]:
    return {"id": record.id, "kind": record.kind, "title": record.title, "outcome": record.outcome,
            "started": utc(record.started), "file": str(record.path)}  # fmt: skip


def _rows(found: Comparison) -> list[dict[str, Any]]:
    return [
        {
            "metric": row.metric.name, "unit": row.metric.unit, "cell": str(row.cell),
            "runs": {n: vars(one) for n, one in zip(found.runs, row.series, strict=True) if one},
            "against_first": {n: one for n, one in zip(found.runs, row.against, strict=True) if one},
        }
        for row in found.rows
    ]  # fmt: skip


def _lines(found: Comparison) -> Iterator[str]:
    for section in sections(found):
        yield from (*filter(None, [section.title]), *table(section.rows, right=section.right), "")
