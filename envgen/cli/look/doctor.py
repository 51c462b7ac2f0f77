"""`envgen doctor`: prove which code a container imports, and what is around it."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import click

from envgen.app import predict, weights
from envgen.app.bundle import write
from envgen.app.fix import mend
from envgen.app.session import Session, of_running
from envgen.cli.common import json_option, print_json, project_options
from envgen.doctor import report, run, scripts, surroundings
from envgen.doctor.deep import examine
from envgen.doctor.gather import gather
from envgen.doctor.model import Severity, Where, Wish
from envgen.doctor.run import Report
from envgen.engine.docker import connect
from envgen.errors import ExitCode, UsageError
from envgen.serve import preflight
from envgen.text import progress, wants_colour


@click.command()
@click.argument("service", required=False)
@project_options
@click.option("--run", "throw_away", is_flag=True, help="With nothing running, look inside a throw-away container.")
@click.option("--deep", is_flag=True, help="Also import for real, ask the packages, and run a kernel (minutes).")
@click.option("--fix", is_flag=True, help="Mend what can be mended safely, after showing it.")
@click.option("--dry-run", is_flag=True, help="With --fix: show what would be done, and do nothing.")
@click.option("--yes", "-y", is_flag=True, help="With --fix: don't ask.")
@click.option("--bundle", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Write findings, versions, files and logs to a redacted FILE (.tar.gz).")  # fmt: skip
@click.option("--strict", is_flag=True, help="Exit 1 for warnings too.")
@json_option
def command(
    session: Session,
    service: str | None,
    throw_away: bool,
    deep: bool,
    fix: bool,
    dry_run: bool,
    yes: bool,
    bundle: Path | None,
    strict: bool,
    as_json: bool,
) -> int:
    """Check host, image and container, and prove which flashinfer and vllm are imported.

    One look inside tells, for every source, what -c, -m and its console script import from each folder. Exit code 0: no
    errors; 1: errors (with --strict: or warnings). SERVICE is the one to look at; default: dev, else any that runs.

    \b
    Example:
      envgen doctor
      envgen doctor serve --strict
      envgen doctor -p prod --run --json
      envgen doctor --deep
      envgen doctor --fix --dry-run
      envgen doctor --bundle diagnosis.tar.gz
    """
    _known_service(session.profile().services, service)
    session = of_running(session, service)
    project, profile = session.loaded().project, session.profile()
    _options_fit(fix, dry_run, yes, as_json)
    wish = Wish(profile, project.root, service, throw_away, project.file.name, load=deep)
    found = look(wish, deep=deep)
    if fix and mend(found, wish, dry_run=dry_run, yes=yes):
        found = look(wish, deep=deep)
    if bundle is not None:
        write(bundle, found, wish)

    if as_json:
        print_json(report.as_data(found))
    else:
        colour = wants_colour(sys.stdout, os.environ)
        click.echo(report.as_text(found, colour=colour), color=colour)
    limit = Severity.WARNING if strict else Severity.ERROR
    return ExitCode.FINDINGS if found.worst >= limit else ExitCode.OK


def look(wish: Wish, *, deep: bool) -> Report:
    """Collect, judge, and add what the project's own scripts and (with ``deep``) the packages themselves say."""
    context, extra = gather(wish, connect)
    if context.engine is not None and context.service in wish.profile.services:
        refused = surroundings.attempt(lambda: preflight.refusals(connect(), wish.profile, wish.root, context.service))
        lacking = surroundings.attempt(lambda: weights.report(connect(), wish.profile, wish.root))
        context = replace(context, refused=refused or (), weights=lacking or {})

    found = run.examine(context, extra)
    if context.engine is None:
        return found
    if (wish.root / scripts.FOLDER).is_dir():
        found = run.with_more(found, Where.INSIDE, scripts.from_folder(context, wish.root, connect()))
    if deep:
        progress("  asking the packages themselves; imports take seconds, a kernel up to minutes")
        engine = connect()
        answers = [*examine(context, wish, engine), *predict.examine(engine, context, wish.root)]
        found = run.with_more(found, Where.INSIDE, answers)
    return found


def _options_fit(fix: bool, dry_run: bool, yes: bool, as_json: bool) -> None:
    if (dry_run or yes) and not fix:
        raise UsageError("--dry-run and --yes go with --fix", hint="envgen doctor --fix --dry-run")
    if fix and as_json and not (yes or dry_run):
        raise UsageError("--fix --json can't ask", hint="add --yes or --dry-run")


def _known_service(known: Collection[str], name: str | None) -> None:
    if name is not None and name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known) or 'none'}"
        raise UsageError(f"the profile has no service {name!r}", hint=hint)
