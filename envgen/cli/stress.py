"""`envgen stress`: many requests, several at a time."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from envgen.cli.common import LARGEST, Figure
from envgen.cli.trial import Asked, Server, finish, run, show_criteria, trial_options

if TYPE_CHECKING:
    from envgen.serve.trial import Trial


@click.command()
@trial_options
@click.option("--requests", "-n", type=click.IntRange(1, LARGEST), default=200, show_default=True, help="How many.")
@click.option("--concurrency", "-c", type=click.IntRange(1, 4096), default=8, show_default=True,
              help="How many at a time (closed load).")  # fmt: skip
@click.option("--rate", type=Figure(0, LARGEST, min_open=True), metavar="PER_SECOND",
              help="Open load instead: so many requests a second, however slow the server is.")  # fmt: skip
@click.option("--prompt-tokens", type=click.IntRange(1, LARGEST), default=64, show_default=True)
@click.option("--output-tokens", type=click.IntRange(1, LARGEST), default=32, show_default=True)
def command(
    asked: Asked, requests: int, concurrency: int, rate: float | None, prompt_tokens: int, output_tokens: int
) -> int:
    """Put SERVICE, or the server at --url, under load. Nothing may fail, nothing may pile up.

    0 failed requests, 0 answers of 5xx, no restart, no zombie process, memory growth under 5 GB. Exit code 1 when one
    of these doesn't hold, 5 when the server goes away.

    \b
    Example:
      envgen stress
      envgen stress --requests 1000 --concurrency 32
      envgen stress --rate 4 --url http://127.0.0.1:8080
    """
    from envgen.serve.stress import StressPlan, stress
    from envgen.serve.trial import worst

    plan = StressPlan(requests, concurrency, rate, prompt_tokens, output_tokens)
    found: list[Any] = []

    def work(_server: Server, trial: Trial) -> tuple[str, dict[str, Any]]:
        criteria, load = stress(trial, plan)
        found.extend(criteria)
        return worst(criteria), {"criteria": [one.plain() for one in criteria], "load": load}

    outcome, summary, path = run(asked, "stress", asdict(plan), work)
    if not asked.as_json:
        show_criteria([("", one) for one in found])
        show_load(summary["load"])
    return finish(asked, outcome, summary, path)


def show_load(load: dict[str, Any]) -> None:
    """Print what was measured besides."""
    click.echo(
        f"  {load['requests']} requests in {load['seconds']:.1f} s: {load['requests_per_s']:.2f} requests/s, "
        f"{load['total_tps']:.1f} generated tokens/s"
    )
    for name, title in (("ttft_ms", "first token"), ("latency_ms", "whole request")):
        told = [f"{key} {value:.1f} ms" for key, value in load[name].items() if value is not None]
        if told:
            click.echo(f"  {title}: " + ", ".join(told))
