"""`envgen results`: list and compare recorded runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from envgen.app.measure import default_folder
from envgen.bench.compare import compare, sections
from envgen.bench.record import RunRecord, plain, resolve, runs, utc
from envgen.cli import FullGroup
from envgen.cli.common import answer, json_option
from envgen.errors import UsageError
from envgen.text import progress, table

folder_option = click.option("--folder", type=click.Path(path_type=Path), metavar="DIR",
                             help="The folder of records (default: results/ beside envgen.yaml, or .).")  # fmt: skip
_COMPARABLE = ("bench", "accept")  # kinds that measure the same figures


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
    found, bad = runs(where)
    for line in bad:
        progress(f"left out: {line}")
    listed = [{**_header(one), "summary": plain(one.summary)} for one in found]
    return answer({"folder": str(where), "damaged": bad, "runs": listed}, _table(where, found))


def _table(where: Path, found: Sequence[RunRecord]) -> Iterator[str]:
    if not found:
        return progress(f"no runs in {where}")
    rows = [("RUN", "WHEN (UTC)", "KIND", "WHAT", "OUTCOME")]
    yield from table([*rows, *((one.id, f"{one.started:%Y-%m-%d %H:%M}", one.kind, one.title, one.outcome)
                               for one in found)])  # fmt: skip


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
    if len({record.path.resolve() for record in records}) < len(records):
        raise UsageError("the same run is named twice", hint="envgen results list")
    by_kind = {kind: run for run in records for kind in [_COMPARABLE if run.kind in _COMPARABLE else (run.kind,)]}
    if len(by_kind) > 1:
        kinds = " and ".join(f"{run.id} is of kind {run.kind}" for run in by_kind.values())
        raise UsageError(f"these runs can't be compared: {kinds}", hint="envgen results list shows kinds")
    comparison = compare(records)
    names = comparison.runs
    figures = [
        {
            "metric": row.metric.name, "unit": row.metric.unit, "cell": str(row.cell),
            "runs": {name: side.plain() for name, side in zip(names, row.series, strict=True) if side},
            "percent": dict(zip(names, row.percent, strict=True)),
        }
        for row in comparison.rows
    ]  # fmt: skip
    headers = {name: _header(record) for name, record in names.items()}
    lines = (line for title, rows, right in sections(comparison)
             for line in (*filter(None, [title]), *table(rows, right=right), ""))  # fmt: skip
    return answer({"runs": headers, "figures": figures, "differing": comparison.differing}, lines)


def _header(record: RunRecord) -> dict[str, str]:
    return {"id": record.id, "kind": record.kind, "title": record.title, "outcome": record.outcome,
            "started": utc(record.started), "file": str(record.path)}  # fmt: skip
