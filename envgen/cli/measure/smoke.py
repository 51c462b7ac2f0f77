"""`envgen smoke`: quick checks of a server; with --full under load, too."""

from __future__ import annotations

import time
from dataclasses import replace

import click

from envgen.app import answers
from envgen.app.measure import Measurement, MeasureOptions, cells_document, run_tool
from envgen.bench import checks
from envgen.bench.record import Run
from envgen.bench.tools import CellResult, Matrix
from envgen.bench.trace import proof
from envgen.cli.common import Count, flag, option
from envgen.cli.measure.common import ANYWHERE, measuring, report
from envgen.errors import UsageError
from envgen.text import progress

REQUESTS = 200
AT_ONCE = 8
LOAD = Matrix(pp=(64,), tg=(32,), concurrency=(AT_ONCE,), runs=REQUESTS // AT_ONCE)


@click.command()
@measuring(*ANYWHERE)
@flag("--full", "Check it under load as well; takes minutes.")
@option("--stress", "MINUTES", "Send the load of --full alone, for so long.", type=Count(1))
def command(
    asked: MeasureOptions,
    full: bool,
    stress: int | None,
) -> int:
    """Run quick checks against the model server SERVICE (default: the only one), or the server at
    --url.

    Asks what `envgen up` asks (a prompt whose log probabilities must be finite, a chat, a tool call
    if the server supports them), and a prompt of 4096 tokens (or what the model takes). Exits with
    1 if one fails.

    With --full, sends 200 requests, 8 at once, and the questions of `envgen answers --quick`, alone
    and together: no request may fail, no process may restart or be left as a zombie, memory may
    grow by less than 5 GB, the same question must get the same answer, the log must match
    `ready.expect` and `ready.forbid` and, on a GPU, show CUDA graphs. What can't be checked counts
    as failed.

    With --stress, sends those requests over and over: the first and the last speed are shown.

    \b
    Examples:
      envgen smoke
      envgen smoke --url http://127.0.0.1:8080
      envgen smoke --full
      envgen smoke --stress 60
    """
    if (full or stress) and asked.url:
        raise UsageError(
            "--full and --stress read the memory and log of a service, which --url has none of"
        )

    def work(trial: Measurement, run: Run) -> checks.Outcome:
        criteria = checks.smoke(trial.target, trial.flags)
        if not full and not stress:
            return checks.outcome(criteria)
        parts = {"smoke": criteria}
        tool, cells = _load(trial, run, parts, stress or 0)
        if full:
            _answers_and_log(trial, run, parts)
        named = [replace(row, part=part) for part, rows in parts.items() for row in rows]
        return checks.outcome(named, strict=True, **cells_document(tool, cells))

    return report(asked, "smoke", {"full": full, "stress": stress}, work)


def _load(
    trial: Measurement, run: Run, parts: dict[str, list[checks.Criterion]], minutes: int
) -> tuple[str, list[CellResult]]:
    """Send the load, again until ``minutes`` are over, and see what it left behind. Returns the
    tool, and its first and last results.
    """
    service = trial.service
    assert service is not None  # there is no --url
    progress(f"load: {REQUESTS} requests, {AT_ONCE} at once")
    before = service.vitals()
    ends = time.monotonic() + 60 * minutes
    tool, cells = run_tool(trial, run, LOAD)
    again = replace(LOAD, tool=tool)
    while time.monotonic() < ends:
        _, more = run_tool(trial, run, again)
        cells += more
    failed = sum(cell.failed for cell in cells)
    faults = [cell.fault for cell in cells if cell.failed]
    whole = replace(cells[0], failed=failed, fault="".join(faults[:1]))
    parts["load"] = checks.load(whole, before, service.vitals(), REQUESTS * len(cells))
    return tool, [cells[0], *cells[1:][-1:]]


def _answers_and_log(
    trial: Measurement, run: Run, parts: dict[str, list[checks.Criterion]]
) -> None:
    """Ask each question alone and among others, then read the log of all of it."""
    service = trial.service
    assert service is not None  # there is no --url
    progress("answers")
    _, answered = answers.ask(trial, run, None, quick=True)
    parts["answers"] = [checks.of_answers(row) for row in answered["rows"]]
    parts["log"] = checks.log_shows(
        service.described.ready, service.log(), trial.flags, gpu="gpu" in trial.environment
    )
    parts["log"] += [
        checks.criterion("trace", one.good, one.text, f"a kernel of {one.wanted}")
        for one in proof(service, service.container)
    ]
