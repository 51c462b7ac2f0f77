"""`envgen bench`: benchmark a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import click

from envgen.app import checks as kernel_checks
from envgen.app.cluster.machines import head_of
from envgen.app.measure import Asked, Server, cells_document, run_tool
from envgen.app.session import with_running_variant
from envgen.bench import checks, record
from envgen.bench.checks import Trial
from envgen.bench.record import Run
from envgen.cli.measure.common import (
    Numbers,
    finish,
    matrix_of,
    matrix_options,
    report,
    server_options,
    tool_options,
)
from envgen.deployment import known_service
from envgen.doctor.model import Subject
from envgen.engine.process import terminable
from envgen.errors import UsageError
from envgen.live import moving
from envgen.text import progress


@click.command()
@server_options
@click.option("--concurrency", "-c", type=Numbers(1), help="Requests at once (default: 1).")
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
@click.option("--kernel", metavar="TEXT", help="With --checks: only kernels with this text in their name.")
@click.option("--tokens", type=Numbers(1), help="With --checks: only these numbers of tokens (M).")
@click.option("--quick", is_flag=True, help="With --checks: two numbers of tokens, and fewer repetitions.")
def command(
    asked: Asked, tokenizer: str | None, image: str | None, kernels: bool, kernel: str | None,
    tokens: tuple[int, ...] | None, quick: bool, **given: Any,
) -> int:  # fmt: skip
    """Benchmark SERVICE, or the server at --url, with llama-benchy or `vllm bench serve`.

    Measures every combination of --pp, --tg, --depth and --concurrency. After Ctrl-C, finished measurements are kept.
    The tool's output is kept beside the record.

    \b
    Examples:
      envgen bench
      envgen bench --depth 0,4096,8192,16384,32768
      envgen bench --tool vllm --concurrency 1,8 --runs 10
      envgen bench --checks
      envgen bench --checks --kernel decode --tokens 1
    """
    chosen_kernels = kernel_checks.chosen_by(kernel, tokens, quick)
    if chosen_kernels and not kernels:
        raise UsageError("--kernel, --tokens and --quick choose what --checks runs", hint="add --checks")
    if kernels:
        others = (asked.url, asked.model, asked.container, asked.key_variable, tokenizer, image)
        if any(others) or any(value is not None for value in given.values()):
            raise UsageError("--checks goes with SERVICE and its own options, --profile, --variant and --results alone")
        return _bench_checks(asked, chosen_kernels)
    chosen = matrix_of(given)

    def work(server: Server, trial: Trial, run: Run) -> checks.Outcome:
        tool, cells = run_tool(trial, run, chosen, server.place(trial.target.root, tokenizer, image))
        return "failed" if any(cell.failed for cell in cells) else "passed", cells_document(tool, cells)

    return report(asked, "bench", asdict(chosen), work)


def _bench_checks(asked: Asked, chosen: Mapping[str, str]) -> int:
    session = asked.session
    if asked.service is not None:
        known_service(session.profile(), asked.service)
    plain = session.deployment()
    session = with_running_variant(session, asked.service, lambda: head_of(plain, asked.service).engine)
    subject = Subject(session.deployment(), asked.service)
    context, environment = kernel_checks.place(subject)
    with (
        terminable(),
        record.start(asked.results or subject.deployment.root / "results", "checks", environment, dict(chosen)) as run,
    ):
        try:
            with moving("checks"):
                outcome, summary = kernel_checks.measure(subject, context, run.sample, chosen)
        except KeyboardInterrupt:
            progress(f"\ninterrupted; the results so far are in {run.path}")
            raise
        run.end(outcome, summary)
    return finish(outcome, summary, run.path)
