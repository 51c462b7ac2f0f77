"""`envgen results`: records of runs: list, show, compare, import, remove."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envgen.cli.common import LARGEST, json_option, print_json
from envgen.text import progress

if TYPE_CHECKING:
    from envgen.results.model import Record
    from envgen.results.shelf import Shelf

HELP = {"help_option_names": ["-h", "--help"]}
FOLDER = "results"

folder_option = click.option("--folder", type=click.Path(path_type=Path), metavar="DIR",
                             help="Where the records are (default: results/ beside envgen.yaml, or here).")  # fmt: skip
html_option = click.option("--html", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
                           help="Write one self-contained page with plots, too.")  # fmt: skip


def default_folder() -> Path:
    """``results/`` beside the project file that is found from here upward, else in the current folder."""
    from envgen.errors import UsageError
    from envgen.profile.load import find

    try:
        return find(Path.cwd()).parent / FOLDER
    except UsageError:
        return Path(FOLDER)


def _shelf(folder: Path | None) -> Shelf:
    from envgen.results.shelf import scan

    found = scan(folder or default_folder())
    for name in found.links:
        progress(f"left out: {name} is a link, and links are not followed")
    return found


@click.group(context_settings=HELP)
def command() -> None:
    """Records of runs: what was measured, where, and whether two differ by more than chance.

    A RUN is the beginning of an id, `latest`, `latest~1` (the one before), or a file.

    \b
    Examples:
      envgen results list
      envgen results compare latest~1 latest
    """


@command.command("list", context_settings=HELP)
@click.option("--kind", metavar="KIND", help="Only smoke, stress, bench, accept or imported.")
@click.option("--last", type=click.IntRange(1, LARGEST), metavar="N", help="Only the newest N.")
@folder_option
@json_option
def list_(kind: str | None, last: int | None, folder: Path | None, as_json: bool) -> int:
    """Show every run, oldest first: when, kind, profile, variant, outcome, headline figures.

    \b
    Examples:
      envgen results list
      envgen results list --kind bench --last 10
      envgen results list --json
    """
    from envgen.cli import results_print as out

    shelf = _shelf(folder)
    entries = [entry for entry in shelf.entries if kind in (None, entry.kind)]
    entries = entries[-last:] if last else entries
    if as_json:
        print_json({"folder": str(shelf.folder), "runs": [out.entry_document(entry) for entry in entries]})
        return 0
    out.print_list(entries)
    if not entries:
        what = f"runs of kind {kind}" if kind else "runs"
        progress(f"there are no {what} in {shelf.folder}")
    return 0


@command.command("show", context_settings=HELP)
@click.argument("run", default="latest")
@folder_option
@html_option
@json_option
def show(run: str, folder: Path | None, html: Path | None, as_json: bool) -> int:
    """Show all of RUN (default: the newest): outcome, figures, parameters, environment.

    \b
    Examples:
      envgen results show
      envgen results show 1a2b --html run.html
      envgen results show latest --json
    """
    from envgen.cli import results_print as out
    from envgen.results.shelf import read

    shelf = _shelf(folder)
    records = read(shelf, [run])
    if html:
        _write_page(html, records, shelf)
    if as_json:
        print_json(out.record_document(records[0]))
    else:
        out.print_record(records[0])
    return 0


@command.command("compare", context_settings=HELP)
@click.argument("runs", nargs=-1, required=True, metavar="A B [C]...")
@folder_option
@html_option
@json_option
def compare(runs: tuple[str, ...], folder: Path | None, html: Path | None, as_json: bool) -> int:
    """Compare runs with A, the first: figures with spread, significance, and what differed between them.

    A difference is called significant when Welch's t-test, adjusted (Holm) for the number of cells, says less than 5 %.
    Fewer than 3 samples a side, and imported means, are never tested.

    \b
    Examples:
      envgen results compare latest~1 latest
      envgen results compare 1a2b 3c4d 5e6f --html compare.html
    """
    from envgen.cli import results_print as out
    from envgen.errors import UsageError
    from envgen.results.matrix import compare as compare_records
    from envgen.results.shelf import read

    if len(runs) < 2:
        raise UsageError("compare wants two runs or more", hint="envgen results compare latest~1 latest")
    if len(runs) > 26:
        raise UsageError(f"compare takes at most 26 runs, not {len(runs)}")
    shelf = _shelf(folder)
    records = read(shelf, runs)
    if len({record.path.resolve() for record in records}) < len(records):
        raise UsageError("the same run is named twice")
    comparison = compare_records(records)
    if html:
        _write_page(html, records, shelf)
    if as_json:
        print_json(out.comparison_document(comparison))
    else:
        out.print_comparison(comparison)
    return 0


@command.command("import", context_settings=HELP)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--date", metavar="DATE", help="When it was measured, for what has no date of its own: 2026-01-09.")
@click.option("--label", default="", metavar="TEXT", help="A name for what the file gives none (default: its name).")
@click.option("--source", default="", metavar="TEXT", help="Where the figures come from (default: the file's name).")
@click.option("-n", "--dry-run", is_flag=True, help="Say what would be imported; write nothing.")
@folder_option
@json_option
def import_(
    file: Path, date: str | None, label: str, source: str, dry_run: bool, folder: Path | None, as_json: bool
) -> int:
    """Make records of figures that others measured: llama-benchy's JSON, CSV or Markdown, tables, a history file.

    They are marked as imported. Means without their samples are shown, and never tested for significance.

    \b
    Examples:
      envgen results import examples/history/gpt-oss-120b-gb10.yaml
      envgen results import llama-benchy.json --label "vLLM 0.14, my Spark"
      envgen results import notes.md --date 2026-01-09 --dry-run
    """
    from envgen.errors import UsageError
    from envgen.results import imported
    from envgen.results.foreign import moment, parse

    when = moment(date) if date else None
    if date and when is None:
        raise UsageError(f"--date: {date!r} is no date", hint="such as 2026-01-09 or 2026-01-09T16:25:01Z")
    runs = parse(file, when, label)
    target = folder or default_folder()
    done: list[dict[str, Any]] = []
    for run in runs:
        path, new = (None, True) if dry_run else imported.write(target, run, imported.source(file, source))
        state = "would be imported" if dry_run else "imported" if new else "there already"
        done.append(
            {
                "label": run.label,
                "date": run.started.isoformat(),
                "samples": len(run.samples),
                "file": str(path) if path else None,
                "state": state,
            }
        )
    if as_json:
        print_json({"folder": str(target), "runs": done})
        return 0
    from envgen.results.text import safe

    for item in done:
        click.echo(f"{item['state']}: {safe(item['label'])}, {item['date'][:10]}, {item['samples']} figures")
    return 0


@command.command("rm", context_settings=HELP)
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("-n", "--dry-run", is_flag=True, help="Say what would be removed; remove nothing.")
@folder_option
@json_option
def rm(runs: tuple[str, ...], dry_run: bool, folder: Path | None, as_json: bool) -> int:
    """Remove the records of RUNs; nothing outside the folder, no link, no run that is still going on.

    \b
    Examples:
      envgen results rm 1a2b --dry-run
      envgen results rm 1a2b 3c4d
    """
    from envgen.results.shelf import removable, remove

    shelf = _shelf(folder)
    paths = list(dict.fromkeys(removable(shelf, run) for run in runs))  # all of them, before the first goes
    for path in paths:
        if not dry_run:
            remove(shelf, path)
        if not as_json:
            click.echo(f"{'would remove' if dry_run else 'removed'} {path}")
    if as_json:
        print_json({"removed" if not dry_run else "would_remove": [str(path) for path in paths]})
    return 0


def _write_page(target: Path, records: list[Record], shelf: Shelf) -> None:
    from envgen.results.page import write_page

    write_page(target, records, shelf)
    progress(f"wrote {target}")
