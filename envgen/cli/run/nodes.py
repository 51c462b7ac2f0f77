"""`envgen nodes`: the machines of a cluster, and whether they fit together."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import click

from envgen.app.cluster import nodes
from envgen.app.session import Session
from envgen.cli import FullGroup
from envgen.cli.common import answer, reporting, service_argument, variant_option
from envgen.deployment.service import LiveService
from envgen.doctor.model import Finding, Severity
from envgen.doctor.report import lines_of, row_of
from envgen.errors import ExitCode
from envgen.text import Styled, wants_colour


@click.group(cls=FullGroup)
def command() -> None:
    """Compare the machines of a service with `cluster`, before `envgen up` starts it.

    \b
    Example:
      envgen nodes check
    """


@command.command()
@service_argument
@reporting
@variant_option
def check(session: Session, service: str | None) -> int:
    """Check that the machines of SERVICE match, before a start. Exits with 6 if they do not.

    Starts a container of the profile's image on each machine, through its Docker context. It
    compares Docker, the image's content, the network interface, RDMA devices, ports, memory and
    weights.

    \b
    Examples:
      envgen nodes check
      envgen nodes check serve --json
    """
    deployment = session.deployment()
    began = time.monotonic()
    name, _ = nodes.choose(deployment.profile, service)
    findings = nodes.check(LiveService(deployment, name))
    failed = [one for one in findings if one.severity is Severity.ERROR]
    seconds = time.monotonic() - began
    document = {
        "service": name,
        "findings": list(map(row_of, findings)),
        "failed": len(failed),
        "seconds": round(seconds, 1),
    }
    code = ExitCode.REFUSED if failed else ExitCode.OK
    return answer(document, _lines(findings, seconds), code)


def _lines(findings: Sequence[Finding], seconds: float) -> Iterator[str]:
    colour = wants_colour(sys.stdout, os.environ)
    for finding in findings:
        yield from map(Styled, lines_of(replace(finding, seen=""), "the project file", colour))
    counts = Counter(finding.severity for finding in findings)
    failed, warned, passed = (
        counts[level] for level in (Severity.ERROR, Severity.WARNING, Severity.OK)
    )
    yield f"{failed} failed, {warned} warned, {passed} passed, {seconds:.1f} s"
