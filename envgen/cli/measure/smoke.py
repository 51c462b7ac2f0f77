"""`envgen smoke`: quick checks of a server."""

from __future__ import annotations

import click

from envgen.app.measure import Asked
from envgen.bench import checks
from envgen.cli.measure.common import report, server_options


@click.command()
@server_options
def command(asked: Asked) -> int:
    """Run quick checks against the model server SERVICE (default: the only one), or the server at --url.

    Sends a short prompt, a chat (with a tool call, if the server supports tools), four requests in parallel, and a
    prompt of 4096 tokens (or what the model takes). Fails if another model answers than the profile names, if log
    probabilities have NaN or Inf, or if memory grows by 1 GB or more over five repeats. Exits with 1 if a check fails.

    \b
    Examples:
      envgen smoke
      envgen smoke --url http://127.0.0.1:8080
    """
    return report(asked, "smoke", {}, lambda _server, trial, _run: checks.outcome(checks.smoke(trial)))
