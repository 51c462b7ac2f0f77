"""`envgen results`: records of runs: list, show, compare, import."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from envgen.bench.compare import Comparison, compare, sections, write_page
from envgen.bench.notes import moment, parse
from envgen.bench.notes import shipped as shipped_runs
from envgen.bench.record import Record, plain, resolve, runs, utc, write_imported
from envgen.cli import FullGroup
from envgen.cli.common import json_option, print_json
from envgen.cli.measure.bench import default_folder, require
from envgen.errors import UsageError
from envgen.text import progress, table, visible

folder_option = click.option("--folder", type=click.Path(path_type=Path), metavar="DIR",
                             help="Where the records are (default: results/ beside envgen.yaml, or here).")  # fmt: skip
html_option = click.option("--html", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
                           help="Write one self-contained page with plots, too.")  # fmt: skip


@click.group(cls=FullGroup)
def command() -> None:
    """Records of runs: what was measured, where, and whether two differ by more than chance.

    A RUN is the beginning of an id, `latest`, `latest~1` (the one before), or a file.

    \b
    Examples:
      envgen results list
      envgen results compare latest~1 latest --html compare.html
    """


@command.command("list")
@folder_option
@json_option
def list_(folder: Path | None, as_json: bool) -> int:
    """Show every run, oldest first: when, kind, what, outcome.

    \b
    Example:
      envgen results list
    """
    where = folder or default_folder()
    found, bad = runs(where)
    for line in bad:
        progress(f"left out: {line}")
    if as_json:
        listed = [{**_who(one), "summary": plain(one.summary)} for one in found]
        print_json({"folder": str(where), "damaged": bad, "runs": listed})
    elif not found:
        progress(f"no runs in {where}")
    else:
        rows = [("RUN", "WHEN (UTC)", "KIND", "WHAT", "OUTCOME")]
        rows += [(one.id, f"{one.started:%Y-%m-%d %H:%M}", one.kind, one.title, one.outcome) for one in found]
        click.echo("\n".join(table(rows)))
    return 0


@command.command("show")
@click.argument("run", default="latest")
@folder_option
@html_option
@json_option
def show(run: str, folder: Path | None, html: Path | None, as_json: bool) -> int:
    """Show all of RUN (default: the newest): outcome, figures, criteria, parameters, environment.

    \b
    Example:
      envgen results show 1a2b --html run.html
    """
    found = _compared([run], folder, html)
    (record,) = found.runs.values()
    if as_json:
        print_json({**plain(vars(record)), "started": utc(record.started), "figures": _rows(found)})
    else:
        _print(found)
    return 0


@command.command("compare")
@click.argument("runs", nargs=-1, required=True, metavar="A B [C]...")
@folder_option
@html_option
@json_option
def compare_(runs: tuple[str, ...], folder: Path | None, html: Path | None, as_json: bool) -> int:
    """Compare two or more RUNs: figures, significance against the first, and what differed in their environments.

    \b
    Example:
      envgen results compare latest~1 latest
    """
    require("bench")
    if not 2 <= len(runs) <= 26:
        raise UsageError("compare takes 2 to 26 runs", hint="envgen results compare latest~1 latest")
    found = _compared(runs, folder, html)
    if as_json:
        named = {name: _who(one) for name, one in found.runs.items()}
        print_json({"runs": named, "figures": _rows(found), "differing": found.differing})
    else:
        _print(found)
    return 0


@command.command("import")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False), required=False)
@click.option("--shipped", is_flag=True,
              help="The figures that ship with envgen: gpt-oss-120b on a GB10, January 2026.")  # fmt: skip
@click.option("--date", metavar="DATE", help="When it was measured, for files without a date: 2026-01-09.")
@folder_option
@json_option
def import_(file: Path | None, shipped: bool, date: str | None, folder: Path | None, as_json: bool) -> int:
    """Make records of figures that others measured, out of lab notes in Markdown.

    Lines with figures that are not imported are listed with the reason. Importing the same again changes nothing.

    \b
    Examples:
      envgen results import --shipped
      envgen results import notes.md --date 2026-01-09
    """
    when = moment(date) if date else None
    if date and when is None:
        raise UsageError(f"--date: {date!r} is not a date", hint="such as 2026-01-09 or 2026-01-09T16:25:01Z")
    if (file is None) != shipped:
        raise UsageError("name a file, or --shipped", hint="envgen results import --shipped")
    found, left = parse(file, when) if file else (shipped_runs(), [])
    target = folder or default_folder()
    done = []
    for run in found:
        path, new = write_imported(target, run)
        done.append({"label": run.label, "date": f"{run.started:%Y-%m-%d}", "figures": len(run.samples), "new": new,
                     "file": str(path)})  # fmt: skip
    if as_json:
        print_json({"folder": str(target), "runs": done, "left_out": [vars(one) for one in left]})
        return 0
    for item in done:
        state = "imported" if item["new"] else "there already"
        click.echo(visible(f"{state}: {item['label']}, {item['date']}, {item['figures']} figures"))
    for one in left:
        click.echo(visible(f"left out: line {one.line}: {one.why}: {one.text}"))
    return 0


def _compared(names: Sequence[str], folder: Path | None, html: Path | None) -> Comparison:
    """The records, compared; and their page, where one is wanted."""
    records = [resolve(folder or default_folder(), name) for name in names]
    if len({record.path.resolve() for record in records}) < len(records):
        raise UsageError("the same run is named twice", hint="envgen results list")
    if html is not None:
        require("bench")
        write_page(html, records)
        progress(f"wrote {html}")
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


def _print(found: Comparison) -> None:
    for section in sections(found):
        click.echo("\n".join([*filter(None, [section.title]), *table(section.rows, right=section.right), ""]))
