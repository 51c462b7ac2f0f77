"""`envgen doctor`: prove which code a container imports, and what is around it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from envgen.app.crash import write_report
from envgen.app.doctor import diagnose, joined
from envgen.app.places import at
from envgen.app.session import Session, of_running
from envgen.cli.common import print_json, reporting, wants_json
from envgen.deployment import known_service
from envgen.doctor import report
from envgen.doctor.model import Severity, Subject
from envgen.engine.session import DOCTOR, hurried
from envgen.errors import ExitCode
from envgen.text import wants_colour


@click.command()
@click.argument("service", required=False)
@reporting
@click.option("--run", "throw_away", is_flag=True, help="If nothing is running, check in a throw-away container.")
@click.option(
    "--deep",
    is_flag=True,
    help="Also import the packages, query them, run a kernel and the checks in checks/deep/ (minutes).",
)
@click.option("--bundle", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Write findings, versions, files and logs to a redacted FILE (.tar.gz).")  # fmt: skip
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings, too.")
@hurried(DOCTOR)
def command(
    session: Session, service: str | None, throw_away: bool, deep: bool, bundle: Path | None, strict: bool
) -> int:
    """Check host, image and container, and prove which flashinfer and vllm are imported.

    A probe in the container reports the folder from which `python -c`, `python -m` and console scripts import each
    source. Exit code 0: no errors; 1: errors (or, with --strict, warnings). SERVICE defaults to dev, or else to a
    running one; with `cluster`, each of its machines is checked.

    \b
    Example:
      envgen doctor -p prod --run --json
      envgen doctor --bundle diagnosis.tar.gz
    """
    if service is not None:
        known_service(session.profile(), service)
    plain = session.deployment()
    session = of_running(session, service, lambda: at(plain, service).engine)
    subject = Subject(session.deployment(), service, throw_away, session.loaded().project.file.name, load=deep)
    diagnoses = diagnose(subject, deep=deep)
    if bundle is not None:
        write_report(bundle, diagnoses)
    found = joined(diagnoses)
    if wants_json():
        print_json(report.as_data(found))
    else:
        colour = wants_colour(sys.stdout, os.environ)
        click.echo(report.as_text(found, colour=colour), color=colour)
    limit = Severity.WARNING if strict else Severity.ERROR
    return ExitCode.FINDINGS if found.worst >= limit else ExitCode.OK
