"""`envgen doctor`: prove which code a container imports, and check its setup."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from envgen.app.bundle import write_report
from envgen.app.cluster.machines import head_of
from envgen.app.doctor import diagnose, joined
from envgen.app.session import Session, with_running_variant
from envgen.cli.common import flag, option, print_json, reporting, service_argument, wants_json
from envgen.deployment import known_service
from envgen.doctor import report
from envgen.doctor.model import Severity, Subject
from envgen.errors import ExitCode
from envgen.text import wants_colour


@click.command()
@service_argument
@reporting
@flag("--run, may_start", "If no service is running, check in a temporary container.")
@option(
    "--bundle",
    "FILE",
    "Write findings, versions, files and logs to FILE (.tar.gz), with secrets removed.",
    type=click.Path(path_type=Path, dir_okay=False),
)
def command(
    session: Session,
    service: str | None,
    may_start: bool,
    bundle: Path | None,
) -> int:
    """Check host, image and container, and prove which vLLM and FlashInfer are imported.

    A probe in the container of SERVICE (default: dev, or a running one) reports the folder from
    which `python -c`, `python -m` and console scripts import each source. With `cluster`, every
    machine is checked. Without an engine, this machine alone is. Exits with 1 if there are errors.

    \b
    Examples:
      envgen doctor -p prod --run --json
      envgen doctor --bundle diagnosis.tar.gz
    """
    if service is not None:
        known_service(session.profile(), service)
    head = head_of(session.deployment(), service)
    session = with_running_variant(session, service, lambda: head.engine)
    deployment = session.deployment().sharing(head)
    subject = Subject(deployment, service, may_start, session.loaded().project.file.name)
    diagnoses = diagnose(subject)
    if bundle is not None:
        write_report(bundle, diagnoses)
    return show(joined(diagnoses), ExitCode.FINDINGS)


def show(result: report.Report, failed: ExitCode) -> int:
    """Print a report. Returns ``failed`` if it has an error."""
    if wants_json():
        print_json(report.as_data(result))
    else:
        colour = wants_colour(sys.stdout, os.environ)
        click.echo(report.as_text(result, colour=colour), color=colour)
    return failed if result.worst is Severity.ERROR else ExitCode.OK
