"""`envgen shell`: a shell in a running container."""

from __future__ import annotations

import click

from envgen.app.session import Session
from envgen.app.up import main_service
from envgen.cli.common import project_options
from envgen.cli.run.common import inside_options, node_option
from envgen.cli.run.exec import attach_to


@click.command()
@click.argument("service", required=False)
@project_options
@inside_options
@node_option
def command(session: Session, service: str | None, inside: list[str], tty: bool, node: str | None) -> int:
    """Open a shell in the running container of SERVICE (default: dev, or the first one).

    \b
    Example:
      envgen shell serve
    """
    profile = session.profile()
    words = ["sh", "-c", "if command -v bash >/dev/null; then exec bash; else exec sh; fi"]
    return attach_to(session, service or main_service(profile), node, words, inside, tty)
