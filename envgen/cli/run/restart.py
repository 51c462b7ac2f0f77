"""`envgen restart`: restart services."""

from __future__ import annotations

import click

from envgen.app.session import Session
from envgen.cli.common import reporting
from envgen.cli.run.common import timeout_option
from envgen.cli.run.start import again


@click.command()
@click.argument("names", metavar="SERVICE...", nargs=-1, required=True)
@reporting
@timeout_option
def command(session: Session, names: tuple[str, ...], timeout: int | None) -> int:
    """Restart the container of each SERVICE, running or stopped, and wait until it answers.

    A running server loads recompiled kernels only after a restart.

    \b
    Example:
      envgen restart serve
    """
    return again("restart", session, names, timeout)
