"""`envgen nodes`: the machines of a cluster, and whether they fit together."""

from __future__ import annotations

import click

from envgen.app.cluster import nodes
from envgen.app.session import Session
from envgen.cli import FullGroup
from envgen.cli.check.doctor import show
from envgen.cli.common import reporting, service_argument, variant_option
from envgen.deployment import LiveService
from envgen.doctor.model import Context
from envgen.doctor.report import Report
from envgen.errors import ExitCode


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
    name = nodes.choose(deployment.profile, service)
    findings = nodes.check(LiveService(deployment, name))
    context = Context(deployment.profile, name)
    return show(Report(context, tuple(findings)), ExitCode.REFUSED)
