"""`envgen smoke`: can the server do the five small things?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from envgen.cli.trial import Asked, Server, finish, run, show_criteria, trial_options

if TYPE_CHECKING:
    from envgen.serve.trial import Trial


@click.command()
@trial_options
def command(asked: Asked) -> int:
    """Try SERVICE (default: the one that serves), or the server at --url, in five small tests.

    A short prompt; no NaN or Inf among the log probabilities; four requests in parallel; the prefill of 4096 tokens
    (fewer where the model takes fewer); five repeats with less than 1 GB of memory growth. Exit code 1 when one fails.

    \b
    Example:
      envgen smoke
      envgen smoke serve --profile prod --json
      envgen smoke --url http://127.0.0.1:8080 --model gpt-oss-120b
    """
    from envgen.serve.smoke import smoke
    from envgen.serve.trial import worst

    found: list[Any] = []

    def work(_server: Server, trial: Trial) -> tuple[str, dict[str, Any]]:
        found.extend(smoke(trial))
        return worst(found), {"criteria": [one.plain() for one in found]}

    outcome, summary, path = run(asked, "smoke", {}, work)
    if not asked.as_json:
        show_criteria([("", one) for one in found])
    return finish(asked, outcome, summary, path)
