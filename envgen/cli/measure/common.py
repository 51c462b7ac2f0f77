"""Options, and how a run is made and printed, for all commands that measure."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from envgen.app.answers import GOOD
from envgen.app.measure import MeasureOptions, Work, measure
from envgen.app.session import Session
from envgen.bench.answers import BROKEN
from envgen.bench.checks import PASSED
from envgen.bench.compare import FigureRange
from envgen.bench.record import METRICS
from envgen.bench.tools import TOOLS, Matrix
from envgen.binding import JsonObject
from envgen.cli.common import LARGEST, Count, answer, option, reporting, variant_option
from envgen.errors import ExitCode
from envgen.text import shorten, table, visible

CODES = {PASSED: ExitCode.OK, **dict.fromkeys(GOOD, ExitCode.OK), BROKEN: ExitCode.SERVICE}
MARKS = {"passed": "ok  ", "failed": "FAIL", "not checked": "?   "}


def measuring(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Add these options, those of the service and how it is asked, and the project's, as one
    ``asked``.
    """

    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(session: Session, **given: Any) -> Any:
            ours = {
                one.name: given.pop(one.name, None)
                for one in fields(MeasureOptions)
                if one.name != "session"
            }
            return function(asked=MeasureOptions(session, **ours), **given)

        for each in reversed((click.argument("service", required=False), *options, *ASKED)):
            wrapper = each(wrapper)
        return reporting(variant_option(wrapper))

    return decorate


def report(asked: MeasureOptions, kind: str, parameters: JsonObject, work: Work) -> int:
    """Measure and print the result. Returns the exit code."""
    (outcome, summary), path = measure(asked, kind, parameters, work)
    return print_run(outcome, summary, path, shown(summary))


def print_run(
    outcome: str, summary: JsonObject, path: Path, lines: Iterable[str], beside: str = ""
) -> int:
    """Print a run and the place of its record. Returns the exit code."""
    last = visible(f"{outcome}{beside}; the record is {path}")
    document = {"outcome": outcome, "record": str(path), **summary}
    code = CODES.get(outcome, ExitCode.FINDINGS)
    return answer(document, (*lines, last), code)


def shown(summary: JsonObject) -> Iterator[str]:
    """The summary of a run as lines: its criteria and cells, if any."""
    for row in summary.get("criteria", ()):
        yield visible(
            f"  {MARKS[row['verdict']]}  {row['part'] and row['part'] + ': '}{row['name']}: {row['seen']}"
        )
        more = [f"wanted: {row['wanted']}"] if row["verdict"] != "passed" else []
        yield from (visible(f"        {text}") for text in (*more, row["note"]) if text)
    if cells := summary.get("cells"):
        names = [name for name in METRICS if any(name in cell for cell in cells)]
        titles = [f"{METRICS[name].label}, {METRICS[name].unit}" for name in names]
        lines = [["test", *titles]]
        for cell in cells:
            line = [cell["test"]]
            for name in names:
                figure = "-"
                if name in cell:
                    figure = str(FigureRange(cell[name]["values"]))
                line.append(figure)
            lines.append(line)
        yield from table(lines, right=range(1, len(lines[0])), indent="  ")
        for cell in cells:
            yield from (visible(f"  {cell['test']}: {note}") for note in cell["remarks"])
    for gap in summary.get("targets", ()):
        yield visible(f"  {gap['text']}")


class Numbers(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """`512,2048`: numbers without duplicates, in the order given."""

    name = "N,..."

    def __init__(self, least: int) -> None:
        self.least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            numbers = tuple(dict.fromkeys(int(part) for part in str(value).split(",")))
        except ValueError:
            numbers = ()
        if not numbers or min(numbers) < self.least or max(numbers) > LARGEST:
            self.fail(
                f"{shorten(str(value), 60)!r} is not a list of numbers such as 512,2048", param, ctx
            )
        return numbers


ASKED = (
    option(
        "--api-key-env, key_variable",
        "NAME",
        "The variable that holds the API key (default: VLLM_API_KEY, if it is one of `secrets`).",
    ),
    option(
        "--timeout",
        "SECONDS",
        "A request or tool without output for this long has failed.",
        type=Count(1),
        default=300,
        show_default=True,
    ),
)
ANYWHERE = (
    option("--url", "URL", "Use this server instead of the profile's service."),
    option("--model", "NAME", "The served model to use (default: the only one)."),
)
TOOL = click.option(
    "--tool",
    type=click.Choice(list(TOOLS)),
    help="llama-benchy (default if the image has it), or vllm for `vllm bench serve`.",
)
MATRIX = (
    option("--concurrency, -c", "N,...", "Requests at once (default: 1).", type=Numbers(1)),
    option("--pp", "N,...", "Tokens in the prompt (default: 2048).", type=Numbers(1)),
    option("--tg", "N,...", "Tokens in the reply (default: 32).", type=Numbers(1)),
    option(
        "--depth, -d",
        "N,...",
        "Tokens in the context before the prompt (default: 0).",
        type=Numbers(0),
    ),
    option("--runs, -r", "N", "Repetitions of each measurement (default: 3).", type=Count(1)),
)


def matrix_of(given: JsonObject) -> Matrix:
    return Matrix(**{key: value for key, value in given.items() if value is not None})
