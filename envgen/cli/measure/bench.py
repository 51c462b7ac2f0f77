"""`envgen bench`: benchmark a server."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from envgen.app.measure import Asked, Server, cells_document, run_tool
from envgen.bench import checks
from envgen.bench.checks import Trial
from envgen.bench.record import Run
from envgen.cli.measure.common import (
    Numbers,
    matrix_of,
    matrix_options,
    report,
    server_options,
    tool_options,
)


@click.command()
@server_options
@click.option("--concurrency", "-c", type=Numbers(1), help="Requests at once (default: 1).")
@matrix_options
@tool_options
@click.option("--prefix-caching", is_flag=True, default=None,
              help="Fill the context first, then measure with it cached.")  # fmt: skip
def command(asked: Asked, tokenizer: str | None, image: str | None, **given: Any) -> int:
    """Benchmark SERVICE, or the server at --url, with llama-benchy or `vllm bench serve`.

    Measures every combination of --pp, --tg, --depth and --concurrency. After Ctrl-C, finished measurements are kept.
    The tool's output is kept beside the record.

    \b
    Examples:
      envgen bench
      envgen bench --depth 0,4096,8192,16384,32768
      envgen bench --tool vllm --concurrency 1,8 --runs 10
    """
    chosen = matrix_of(given)

    def work(server: Server, trial: Trial, run: Run) -> checks.Outcome:
        tool, cells = run_tool(trial, run, chosen, server.place(trial.target.root, tokenizer, image))
        return "failed" if any(cell.failed for cell in cells) else "passed", cells_document(tool, cells)

    return report(asked, "bench", asdict(chosen), work)
