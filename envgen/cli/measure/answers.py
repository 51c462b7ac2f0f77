"""`envgen answers`: are a server's answers right?"""

from __future__ import annotations

from collections.abc import Iterator

import click

from envgen.app.answers import answered, reference_of
from envgen.app.measure import MeasureOptions
from envgen.binding import JsonObject
from envgen.cli.common import ask, flag, option
from envgen.cli.measure.common import ANYWHERE, measuring, print_run
from envgen.text import table, visible


@click.command()
@measuring(*ANYWHERE)
@option("--against, -a", "REF", "Compare with a record (`latest`), a variant, a profile or a URL.")
@flag("--yes, -y", "Stop the service for --against without asking.")
@flag("--quick", "Ask eight of the questions.")
def command(asked: MeasureOptions, against: str | None, yes: bool, quick: bool) -> int:
    """Ask the model server SERVICE (default: the only one) 32 fixed questions, and say whether its
    answers are right.

    Facts, arithmetic, code, languages, chats, a tool and two long texts; the likeliest words, with
    their probabilities.
    Each question is asked alone, and eight at once; then the server reads its own answers. With
    --against it also reads the reference's answers, so that one early difference does not hide the
    rest. A variant or profile is started for it in place of the service, after a question, and the
    service then starts again.

    The verdict is `same`, `close` (what another kernel or batch size gives; exit code 0),
    `different` (1) or `broken` (5). It is `not compared` (1) where a server refuses a question or
    gives no probabilities: what was not answered counts, and is named.

    \b
    Examples:
      envgen answers
      envgen answers --against latest
      envgen answers serve --against prod
      envgen answers serve --against http://127.0.0.1:8001
    """
    reference = None
    beside = ", compared with itself alone"
    if against:
        reference = reference_of(asked, against, lambda question: yes or ask(question), quick=quick)
        beside = f" against {reference.title} ({reference.id})"
    verdict, summary, path = answered(asked, reference, quick=quick)
    return print_run(verdict, summary, path, shown(summary), beside)


def shown(summary: JsonObject) -> Iterator[str]:
    """The rows of a comparison as lines."""
    rows = []
    for row in summary["rows"]:
        rows.append((row["verdict"], row["name"], row["seen"]))
    for line in table(rows, indent="  "):
        yield visible(line)
    for difference in summary.get("differing", ()):
        yield visible(f"  differs: {difference}")
