"""`envgen accept`: the full acceptance test."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import click

from envgen.app.measure import Asked, Server
from envgen.bench import checks
from envgen.bench.checks import Trial
from envgen.bench.client import Reply
from envgen.bench.record import Run
from envgen.bench.tools import references
from envgen.cli.common import Count, Figure
from envgen.cli.measure.common import cells_document, matrix_of, report, run_tool, server_options, tool_options
from envgen.errors import UsageError
from envgen.text import progress

PARTS = ("smoke", "load", "bench", "log")  # of accept


@click.command()
@server_options
@click.option("--requests", "-n", type=Count(1), default=200, show_default=True, metavar="N",
              help="Requests in the load test.")  # fmt: skip
@click.option("--concurrency", "-c", type=click.IntRange(1, 4096), default=8, show_default=True, metavar="N",
              help="Requests at once in the load test.")  # fmt: skip
@tool_options
@click.option(
    "--reference",
    "-R",
    multiple=True,
    metavar="RUN|TEST=T/S",
    help="Compare speed with a recorded run, or with a figure such as tg32=57.85, tg32@d4096=52.4 or pp2048=1700"
    " tokens/s (repeatable).",
)
@click.option("--only", multiple=True, type=click.Choice(list(PARTS)), help="Run only this part (repeatable).")
@click.option("--max-ttft", type=Figure(0, min_open=True), metavar="MS",
              help="Limit for the time to the first token of a short prompt.")  # fmt: skip
@click.option("--max-per-token", type=Figure(0, min_open=True), metavar="MS", help="Limit for each token.")
def command(
    asked: Asked, requests: int, concurrency: int, tokenizer: str | None, throwaway: bool, image: str | None,
    reference: tuple[str, ...], only: tuple[str, ...], max_ttft: float | None, max_per_token: float | None,
    **given: Any,
) -> int:  # fmt: skip
    """Run the full acceptance test against SERVICE, or the server at --url.

    Runs the checks of `envgen smoke`, a load test in which no request may fail, and a benchmark. Also requires: no
    restart, memory growth below 5 GB, a log that matches `ready.expect` and `ready.forbid`, CUDA graphs on a GPU,
    throughput within 20 % of each --reference, latency within the limits, and no zombie processes. Exits with 0 only if
    everything was checked and passed.

    \b
    Examples:
      envgen accept --max-ttft 100 --max-per-token 20
      envgen accept --reference latest --pp 2048 --depth 0,4096
      envgen accept --reference tg32=57.85
      envgen accept --only load --requests 200 --concurrency 8
    """
    chosen = matrix_of(given)
    if only and "bench" not in only and (reference or max_ttft or max_per_token):
        raise UsageError("the part bench judges --reference, --max-ttft and --max-per-token", hint="--only bench")
    if only and "smoke" not in only and max_ttft:
        raise UsageError("the part smoke measures --max-ttft", hint="--only smoke --only bench")
    required = checks.Requirements(references(reference, asked.folder(), chosen), max_ttft, max_per_token)
    parts_run = only or PARTS

    def work(server: Server, trial: Trial, run: Run) -> checks.Outcome:
        place = server.place(trial.target.root, tokenizer, image, throwaway) if "bench" in parts_run else None
        ready = server.profile.services[server.service].ready if server.profile else None
        wanted = replace(required, expect=ready.expect, forbid=ready.forbid) if ready else required
        parts: dict[str, list[checks.Criterion]] = {}
        shorts: list[Reply] = []
        more: dict[str, Any] = {}
        if "smoke" in parts_run:
            progress("smoke")
            parts["smoke"] = checks.smoke(trial)
            shorts = trial.replies[-checks.REPEATS :]
        if "load" in parts_run:
            progress("load")
            parts["load"], more["load"] = checks.put_under_load(trial, requests, concurrency)
        if place is not None:
            progress("bench")
            tool, cells = run_tool(trial, run, chosen, place)
            parts["bench"] = [*checks.throughput(cells, wanted), *checks.latency(cells, shorts, wanted)]
            more |= cells_document(tool, cells)
        if "log" in parts_run:
            log = server.engine.logs(server.container.id, tail=None) if server.engine and server.container else None
            parts["log"] = checks.log_shows(wanted, log, trial.environment.get("flags"), "gpu" in trial.environment)
        parts["end"] = [checks.zombies(after)] if (after := trial.look()) else []
        found = [replace(one, part=part) for part, criteria in parts.items() for one in criteria]
        return checks.outcome(found, strict=True, **more)

    parameters = {"requests": requests, "concurrency": concurrency, **asdict(chosen), "references": list(reference)}
    parameters |= {"only": list(only)} if only else {}
    return report(asked, "accept", parameters, work)
