"""`envgen accept`: the full acceptance test."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from envgen.app import answers
from envgen.app.measure import Asked, Trial, cells_document, results_folder, run_tool
from envgen.bench import checks, record
from envgen.bench.record import Run
from envgen.bench.tools import Matrix
from envgen.cli.common import Count
from envgen.cli.measure.common import TOOL, measuring, report
from envgen.text import progress

PROMPT, REPLY, ALONE = (
    64,
    32,
    5,
)  # tokens of the load's requests, and requests that are sent one by one


@click.command()
@measuring(TOOL)
@click.option(
    "--requests",
    "-n",
    type=Count(1),
    default=200,
    show_default=True,
    metavar="N",
    help="Requests of the load.",
)
@click.option(
    "--concurrency",
    "-c",
    type=click.IntRange(1, 4096),
    default=8,
    show_default=True,
    metavar="N",
    help="Requests at once.",
)
@click.option(
    "--max-ttft", type=Count(1), metavar="MS", help="Limit for the time to the first token."
)
@click.option("--max-per-token", type=Count(1), metavar="MS", help="Limit for each token.")
@click.option(
    "--reference",
    "-R",
    metavar="RUN",
    help="A record of `envgen answers` to agree with, such as `latest`.",
)
def command(
    asked: Asked,
    requests: int,
    concurrency: int,
    tool: str | None,
    max_ttft: int | None,
    max_per_token: int | None,
    reference: str | None,
) -> int:
    """Run the full acceptance test against the running SERVICE (default: the only one).

    Runs the checks of `envgen smoke`, and a load by llama-benchy or `vllm bench serve` in which no
    request may fail.
    Also requires: no restart, memory growth below 5 GB, no zombie processes, a log that matches
    `ready.expect` and `ready.forbid`, CUDA graphs on a GPU, latency within the limits (the medians
    of five requests, one by one), and answers as those of --reference. Exits with 0 only if
    everything was checked and passed.

    \b
    Examples:
      envgen accept
      envgen accept --max-ttft 100 --max-per-token 20
      envgen accept --reference latest
    """
    kept = (
        record.resolve(results_folder(asked.session.file), reference, "answers")
        if reference
        else None
    )
    sent = -(-requests // concurrency) * concurrency  # the tools send whole rounds
    plan = Matrix((PROMPT,), (REPLY,), (0,), (concurrency,), sent // concurrency, tool or "")

    def work(trial: Trial, run: Run) -> checks.Outcome:
        service, flags = trial.service, trial.flags
        assert service is not None  # it has no --url
        progress("smoke")
        parts = {"smoke": checks.smoke(trial.target, flags)}
        progress(f"load: {sent} requests, {concurrency} at once")
        before = service.vitals()
        used, cells = run_tool(trial, run, plan)
        parts["load"] = checks.load(cells[0], before, service.vitals(), sent)
        if max_ttft or max_per_token:
            alone = replace(plan, concurrency=(1,), runs=ALONE, tool=used)
            cells += run_tool(trial, run, alone)[1]
            parts["latency"] = checks.latency(cells[-1], max_ttft, max_per_token)
        if kept:
            progress("answers")
            _, told = answers.ask(trial, run, kept, quick=bool(kept.parameters.get("quick")))
            parts["answers"] = [
                checks.of_answers(row["name"], row["verdict"], row["seen"]) for row in told["rows"]
            ]
        parts["log"] = checks.log_shows(
            service.service.ready, service.log(), flags, gpu="gpu" in trial.environment
        )
        criteria = [replace(row, part=part) for part, rows in parts.items() for row in rows]
        return checks.outcome(criteria, strict=True, **cells_document(used, cells))

    parameters: dict[str, Any] = {"requests": sent, "concurrency": concurrency}
    return report(asked, "accept", parameters, work)
