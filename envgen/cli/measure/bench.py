"""`envgen bench`: benchmark a server."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from envgen.app import checks as kernel_checks
from envgen.app.measure import Asked, bench
from envgen.cli.measure.common import (
    finish,
    matrix_of,
    matrix_options,
    report,
    server_options,
    tool_options,
)
from envgen.errors import UsageError


@click.command()
@server_options
@matrix_options
@tool_options
@click.option("--prefix-caching", is_flag=True, default=None,
              help="Fill the context first, then measure with it cached.")  # fmt: skip
@click.option(
    "--checks",
    "kernels",
    is_flag=True,
    help="Run the kernel checks in checks/deep/ instead. Needs no server; SERVICE defaults to dev.",
)
def command(asked: Asked, tokenizer: str | None, image: str | None, kernels: bool, **given: Any) -> int:
    """Benchmark SERVICE, or the server at --url, with llama-benchy or `vllm bench serve`.

    Measures every combination of --pp, --tg, --depth and --concurrency. After Ctrl-C, finished measurements are kept.
    The tool's output is kept beside the record.

    \b
    Examples:
      envgen bench
      envgen bench --depth 0,4096,8192,16384,32768
      envgen bench --tool vllm --concurrency 1,8 --runs 10
      envgen bench --checks
      ENVGEN_CHECK_KERNEL=decode envgen bench --checks
    """
    if kernels:
        others = (asked.url, asked.model, asked.container, asked.key_variable, tokenizer, image)
        if any(others) or any(value is not None for value in given.values()):
            raise UsageError("--checks goes with SERVICE, --profile, --variant and --results alone")
        outcome, path = kernel_checks.measure(asked)
        return finish(*outcome, path)
    chosen = matrix_of(given)
    return report(asked, "bench", asdict(chosen), bench(chosen, tokenizer, image))
