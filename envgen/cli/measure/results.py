"""`envgen results`: records of runs: list, show, compare, import."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from envgen.bench.compare import Comparison, compare, flat, sections
from envgen.bench.imports import Imported, parse
from envgen.bench.notes import moment
from envgen.bench.notes import shipped as shipped_runs
from envgen.bench.page import write_page
from envgen.bench.record import Record, load, plain, resolve, runs, utc, write_imported
from envgen.cli import FullGroup
from envgen.cli.common import LARGEST, json_option, print_json
from envgen.cli.measure.common import default_folder, shown
from envgen.engine.base import MISSHAPEN
from envgen.errors import UsageError
from envgen.extras import require
from envgen.text import counted, progress, table, visible

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
@click.option("--kind", metavar="KIND", help="Only smoke, stress, bench, kernels, trace, accept or imported.")
@click.option("--last", type=click.IntRange(1, LARGEST), metavar="N", help="Only the newest N.")
@folder_option
@json_option
def list_(kind: str | None, last: int | None, folder: Path | None, as_json: bool) -> int:
    """Show every run, oldest first: when, kind, what, outcome.

    \b
    Example:
      envgen results list --kind bench --last 10
    """
    where = folder or default_folder()
    found, bad = runs(where)
    entries = [one for one in found if kind in (None, one.kind)][-(last or 0) :]
    for line in bad:
        progress(f"left out: {line}")
    if as_json:
        print_json({"folder": str(where), "damaged": bad, "runs": [
            {"id": one.id, "kind": one.kind, "started": utc(one.started), "title": one.title, "outcome": one.outcome,
             "summary": plain(one.summary), "file": str(one.path)}
            for one in entries
        ]})  # fmt: skip
        return 0
    if not entries:
        progress(f"no runs{f' of kind {kind}' if kind else ''} in {where}")
        return 0
    rows = [("RUN", "WHEN (UTC)", "KIND", "WHAT", "OUTCOME")]
    rows += [(one.id, f"{one.started:%Y-%m-%d %H:%M}", one.kind, one.title, one.outcome) for one in entries]
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
    (record,), found = _compared([run], folder, html)
    if as_json:
        print_json({
            "id": record.id, "kind": record.kind, "started": utc(record.started), "outcome": record.outcome,
            "ended": utc(record.ended) if record.ended else None, "torn": record.torn, "file": str(record.path),
            "summary": plain(record.summary), "figures": _rows(found), "parameters": plain(record.parameters),
            "environment": plain(record.environment), "samples": plain(record.samples),
        })  # fmt: skip
        return 0
    cut = "; its last line is cut off" if record.torn else ""
    click.echo(visible(f"{record.kind} {record.id}: {record.title}"))
    samples = counted(len(record.samples), "sample")
    click.echo(f"  started {utc(record.started)}, {record.outcome}{cut}, {samples} in {record.path}")
    _print(found)
    with contextlib.suppress(*MISSHAPEN):  # a record by another version
        click.echo("\n".join(["", *shown({**record.summary, "cells": ()})]))
    facts = flat({"parameters": record.parameters, **record.environment})
    click.echo("\n".join(["", *table(sorted(facts.items()))]))
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
    records, found = _compared(runs, folder, html)
    named = list(zip(found.names, records, strict=True))
    if as_json:
        print_json({
            "runs": {name: {"id": one.id, "kind": one.kind, "title": one.title} for name, one in named},
            "figures": _rows(found), "differing": found.differing,
        })  # fmt: skip
        return 0
    rows = [(name, one.id, f"{one.started:%Y-%m-%d %H:%M}", one.kind, one.title) for name, one in named]
    click.echo("\n".join(table(rows)))
    _print(found)
    return 0


@command.command("import")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option(
    "--shipped", is_flag=True, help="The figures that ship with envgen: gpt-oss-120b on a GB10, January 2026."
)
@click.option("--date", metavar="DATE", help="When it was measured, for files without a date: 2026-01-09.")
@click.option("--label", default="", metavar="TEXT", help="A name for what the file gives none (default: its name).")
@click.option("-n", "--dry-run", is_flag=True, help="Show what would be imported; write nothing.")
@folder_option
@json_option
def import_(
    file: Path | None, shipped: bool, date: str | None, label: str, dry_run: bool, folder: Path | None, as_json: bool
) -> int:
    """Make records of figures that others measured: reports of the tools, lab notes in Markdown.

    Lines with figures that are not imported are listed with the reason. Importing the same again changes nothing.

    \b
    Examples:
      envgen results import --shipped
      envgen results import notes.md --date 2026-01-09 --dry-run
    """
    when = moment(date) if date else None
    if date and when is None:
        raise UsageError(f"--date: {date!r} is not a date", hint="such as 2026-01-09 or 2026-01-09T16:25:01Z")
    if (file is None) != shipped:
        raise UsageError("name a file, or --shipped", hint="envgen results import --shipped")
    found = parse(file, when, label) if file else Imported(shipped_runs(), [], {})
    target = folder or default_folder()
    done = []
    for run in found.runs:
        assert run.started is not None
        imported = {**(run.environment.get("imported") or {}), **found.source, "label": run.label}
        environment, path, new = {**run.environment, "imported": imported}, None, True
        if not dry_run:
            path, new = write_imported(target, run.label, run.started, environment, run.parameters, run.samples)
        state = "would be imported" if dry_run else "imported" if new else "there already"
        done.append({"label": run.label, "date": utc(run.started), "figures": len(run.samples), "state": state,
                     "line": run.line, "file": str(path or "")})  # fmt: skip
    left = [{"line": one.line, "text": one.text, "why": one.why} for one in found.left_out]
    if as_json:
        print_json({"folder": str(target), "runs": done, "left_out": left})
        return 0
    for item in done:
        click.echo(visible(f"{item['state']}: {item['label']}, {str(item['date'])[:10]}, {item['figures']} figures"))
    for item in left:
        click.echo(visible(f"left out: line {item['line']}: {item['why']}: {item['text']}"))
    return 0


def _compared(names: Sequence[str], folder: Path | None, html: Path | None) -> tuple[list[Record], Comparison]:
    """The records, compared; and their page, where one is wanted."""
    records = [load(resolve(folder or default_folder(), name)) for name in names]
    if len({record.path.resolve() for record in records}) < len(records):
        raise UsageError("the same run is named twice", hint="envgen results list")
    if html is not None:
        require("bench")
        write_page(html, records)
        progress(f"wrote {html}")
    return records, compare(records)


def _rows(found: Comparison) -> list[dict[str, Any]]:
    return [
        {
            "metric": row.metric.name, "unit": row.metric.unit, "cell": str(row.cell),
            "runs": {n: vars(one) for n, one in zip(found.names, row.series, strict=True) if one},
            "against_first": {n: one for n, one in zip(found.names, row.against, strict=True) if one},
        }
        for row in found.rows
    ]  # fmt: skip


def _print(found: Comparison) -> None:
    for section in sections(found):
        rows = [
            ("  " + row[0], *row[1:]) for row in section.rows[not section.rows[0][0] and len(section.rows[0]) == 1 :]
        ]
        click.echo("\n".join(["", section.title, *table(rows, right=section.right)]))
