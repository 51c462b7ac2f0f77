"""`envgen start`: start stopped services again."""

from __future__ import annotations

from collections.abc import Sequence

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
    """Start the stopped container of each SERVICE again, and wait until it answers.

    The container stays as it was created; `envgen up` applies changes of the profile.

    \b
    Example:
      envgen start serve
    """
    return again("start", session, names, timeout)


def again(verb: str, session: Session, names: Sequence[str], timeout: int | None) -> int:
    """`start` or `restart` each service, and print how it became ready."""
    documents = []
    for name in names:
        with moving(f"{name}: {verb}"):
            profile, started = lifecycle.again(verb, session, name, timeout)
        documents.append(started_document(profile, name, started, waited=True))
        if not wants_json():
            print_started(profile, name, started)
    return answer(documents[0] if len(names) == 1 else documents)
