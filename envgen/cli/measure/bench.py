"""`envgen bench`: benchmark a server."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from envgen.app.measure import MeasureOptions, bench
from envgen.cli.common import option
from envgen.cli.measure.common import ANYWHERE, MATRIX, TOOL, matrix_of, measuring, report


@click.command()
@measuring(*ANYWHERE, *MATRIX, TOOL)
@option("--tokenizer", "PATH", "The tokenizer for the tool: a folder or a model's name.")
@option(
    "--at-least, least",
    "TARGET",
    "Exit with 1 below this target of the profile, such as 'llama.cpp -20%'.",
)
def command(asked: MeasureOptions, tokenizer: str | None, least: str | None, **given: Any) -> int:
    """Benchmark SERVICE, or the server at --url, with llama-benchy or `vllm bench serve`.

    Measures every combination of --pp, --tg, --depth and --concurrency. After Ctrl-C, finished
    measurements are kept.
    The tool's output is kept beside the record. The gap to each of the profile's `targets` is
    printed.

    \b
    Examples:
      envgen bench
      envgen bench --depth 0,4096,8192,16384,32768
      envgen bench --tool vllm --concurrency 1,8 --runs 10
      envgen bench --at-least 'llama.cpp -20%'
    """
    chosen = matrix_of(given)
    return report(asked, "bench", asdict(chosen), bench(chosen, tokenizer, least))
