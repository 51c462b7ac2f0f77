"""`envgen smoke`: quick checks of a server."""

from __future__ import annotations

import click

from envgen.app.measure import Asked
from envgen.bench import checks
from envgen.cli.measure.common import ANYWHERE, measuring, report


@click.command()
@measuring(*ANYWHERE)
def command(asked: Asked) -> int:
    """Run quick checks against the model server SERVICE (default: the only one), or the server at
    --url.

    Asks what `envgen up` asks (a prompt whose log probabilities must be finite, a chat, a tool call
    if the server supports them), and a prompt of 4096 tokens (or what the model takes). Exits with
    1 if one fails.

    \b
    Examples:
      envgen smoke
      envgen smoke --url http://127.0.0.1:8080
    """
    return report(
        asked,
        "smoke",
        {},
        lambda trial, _run: checks.outcome(checks.smoke(trial.target, trial.flags)),
    )
