"""`envgen restart`: restart services."""

from __future__ import annotations

import click

from envgen.app import lifecycle
from envgen.app.session import Session
from envgen.cli.common import answer, reporting, wants_json
from envgen.cli.run.common import timeout_option
from envgen.cli.run.starting import print_started, started_document
from envgen.live import moving


@click.command()
@click.argument("names", metavar="SERVICE...", nargs=-1, required=True)
@reporting
@timeout_option
def command(session: Session, names: tuple[str, ...], timeout: int | None) -> int:
    """Restart the container of each SERVICE, running or stopped, and wait until it answers.

    A running server loads recompiled kernels only after a restart. First it is checked as by
    `envgen up`: what would not start again is not stopped. The container stays as it was created
    unless the profile has changed.

    \b
    Example:
      envgen restart serve
    """
    documents = []
    for name in names:
        with moving(f"{name}: restart"):
            live, started = lifecycle.restart(session, name, timeout)
        documents.append(started_document(live, started, waited=True))
        if not wants_json():
            print_started(live, started)
    return answer(documents[0] if len(names) == 1 else documents)
