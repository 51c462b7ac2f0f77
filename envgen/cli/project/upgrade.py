"""`envgen upgrade`: another release of a source, shown before it is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from envgen.app import upgrade as app
from envgen.app.session import Session
from envgen.cli.common import answer, ask, print_json, reporting, wants_json
from envgen.cli.look.predict import text as prediction_text
from envgen.errors import ExitCode, RefusedError, UsageError
from envgen.patches.dry_run import as_document, report_lines
from envgen.text import progress, table


@click.command()
@click.argument("source", required=False)
@click.argument("version", required=False)
@reporting
@click.option("--python", type=click.Path(path_type=Path, exists=True, dir_okay=False), metavar="PATH",
              help="Ask the vLLM of this Python what it would choose, as `envgen predict --python` does.")  # fmt: skip
@click.option("--yes", is_flag=True, help="Write without asking.")
@click.option("--dry-run", is_flag=True, help="Show what would change; write nothing.")
def command(
    session: Session, source: str | None, version: str | None, python: Path | None, yes: bool, dry_run: bool
) -> int:
    """Move SOURCE to the release VERSION (default: the newest that fits): look first, then change envgen.yaml.

    Without SOURCE: the sources of the profile (of all profiles without -p), their newest releases and how many patches
    fit those.

    Both releases' sources are read from the package index, and nothing of them is run: which patches fit, which flags,
    variables and log lines of the services are gone or deprecated, which torch is asked for, which refs its CMake
    names. A source that the release pins moves with it. Where a Python with that vLLM is at hand (--python), it is
    asked what it would choose. Then come the diff and a question; comments, quotes and order of the file stay. With
    --json only --yes writes.

    Exit code 1: the release is known not to build or start as the profile is.

    \b
    Example:
      envgen upgrade vllm 0.31.0 -p current --dry-run
    """
    if yes and dry_run:
        raise UsageError("--yes writes, and --dry-run does not: name one of them")
    if source is None:
        return _rows(session)
    found = app.plan(session, source, version, python)
    stops = any(one.stops for one in found.findings)
    if wants_json():
        if yes and found.edits:
            found.write()
        print_json({**_document(found), "written": yes and bool(found.edits)})
        return ExitCode.FINDINGS if stops else ExitCode.OK
    if not found.edits:
        click.echo(f"{source} (profile {found.profile.name}) is at {found.wanted[source][1]} already")
        return ExitCode.OK
    for line in _text(found, source):
        click.echo(line)
    if not dry_run:
        if not (yes or ask(f"write {found.file.name}?")):
            hint = "--yes writes without a question"
            raise RefusedError(f"{found.file.name} is as it was: that needs a yes", hint=hint)
        found.write()
        progress(f"wrote {found.file.name}")
        progress(f"next: envgen lock -p {found.profile.name} && envgen build -p {found.profile.name}")
    return ExitCode.FINDINGS if stops else ExitCode.OK


def _rows(session: Session) -> int:
    rows = app.rows(session)
    return answer({"sources": [{**asdict(one), "place": str(one.place)} for one in rows]}, _table(rows))


def _table(rows: Sequence[app.Row]) -> Iterator[str]:
    shown = [["source", "profile", "now", "newest", "patches", ""]]
    for one in rows:
        newest = "the same" if one.now and one.newest == one.now else one.newest
        place = f"{one.place.file}:{one.place.line}" if one.place.line else one.place.file
        shown.append([one.source, one.profile, one.now, newest, one.patches, one.note or place])
    yield from table(shown)
    if moves := [one for one in rows if one.newest and one.newest != one.now]:
        progress(f"next: envgen upgrade {moves[-1].source} -p {moves[-1].profile}")


def _text(found: app.Plan, source: str) -> list[str]:
    lines = []
    for name, (now, then) in found.wanted.items():
        why = f"newest: {found.newest}" if name == source else f"{source} {found.wanted[source][1]} pins it"
        lines.append(f"{name} (profile {found.profile.name}): {now} -> {then} ({why})")
    lines += [f"torch: {found.torch}"] if found.torch else []
    for run in found.runs:
        lines += report_lines(run)
    for said in found.predictions:
        lines += prediction_text(said, found.profile)
    lines += [f"{'stops: ' if one.stops else ''}{one}" for one in found.findings]
    return [*lines, found.diff]


def _document(found: app.Plan) -> dict[str, Any]:
    return {
        "profile": found.profile.name,
        "sources": {name: {"now": now, "then": then} for name, (now, then) in found.wanted.items()},
        "newest": found.newest,
        "torch": found.torch or None,
        "patches": [as_document(run.series, run) for run in found.runs],
        "predictions": {one.service: one.judgement.verdict.value for one in found.predictions},
        "findings": [{**vars(one), "place": str(one.place or "") or None} for one in found.findings],
        "diff": found.diff if found.edits else "",
    }
