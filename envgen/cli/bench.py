"""`envgen bench`: throughput and latency over prompt and output lengths."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from envgen.cli.common import LARGEST, Figure
from envgen.cli.trial import Asked, Server, finish, run, trial_options
from envgen.text import progress, shorten, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envgen.serve.bench import BenchPlan
    from envgen.serve.trial import Trial


def numbers(_ctx: click.Context, parameter: click.Parameter, text: str) -> tuple[int, ...]:
    """`512,2048` as numbers, each once, in the order given."""
    try:
        found = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        found = ()
    if not found or min(found) < 1 or max(found) > LARGEST:
        raise click.BadParameter(f"{shorten(text, 60)!r} is not a list of numbers such as 512,2048", param=parameter)
    return found


@click.command()
@trial_options
@click.option("--prompt-tokens", "--pp", default="512,2048", show_default=True, callback=numbers, metavar="N,...")
@click.option("--output-tokens", "--tg", default="32,128", show_default=True, callback=numbers, metavar="N,...")
@click.option("--concurrency", "-c", default="1", show_default=True, callback=numbers, metavar="N,...",
              help="How many requests at a time (closed load).")  # fmt: skip
@click.option("--repeats", "-r", type=click.IntRange(1, LARGEST), default=5, show_default=True)
@click.option(
    "--warmup", type=click.IntRange(0, LARGEST), default=1, show_default=True, help="Repeats that don't count."
)
@click.option("--rate", type=Figure(0, LARGEST, min_open=True), metavar="PER_SECOND",
              help="Open load instead: so many requests a second, however slow the server is.")  # fmt: skip
@click.option("--requests", "-n", type=click.IntRange(1, LARGEST),
              help="Requests in one repeat (default: as many as are under way at a time).")  # fmt: skip
@click.option("--tool", type=click.Choice(["envgen", "llama-benchy"]), default="envgen", show_default=True,
              help="Who measures. llama-benchy runs in the service's container and must be in its image.")  # fmt: skip
@click.option("--tokenizer", metavar="PATH", help="For llama-benchy: the model's folder in the container.")
def command(
    asked: Asked,
    prompt_tokens: tuple[int, ...],
    output_tokens: tuple[int, ...],
    concurrency: tuple[int, ...],
    repeats: int,
    warmup: int,
    rate: float | None,
    requests: int | None,
    tool: str,
    tokenizer: str | None,
) -> int:
    """Measure SERVICE, or the server at --url: prefill and decode throughput, time to first token, time between tokens.

    Every prompt length is combined with every output length and every concurrency. The server's own usage data counts
    the tokens. Shown are mean ± standard deviation over the repeats and the coefficient of variation.

    \b
    Example:
      envgen bench --pp 512,2048,8192 --tg 32,128
      envgen bench --concurrency 1,8 --repeats 10
      envgen bench --tool llama-benchy --pp 2048 --tg 32
    """
    from envgen.serve.bench import BenchPlan, bench

    if rate is not None and concurrency != (1,):
        raise click.UsageError("--rate is open load, --concurrency closed load: choose one")
    if rate is not None and requests is None:
        raise click.UsageError("--rate needs --requests: how many there are in one repeat")
    plan = BenchPlan(prompt_tokens, output_tokens, concurrency, repeats, warmup, rate, requests)
    if tool == "llama-benchy":
        return _benchy(asked, plan, tokenizer)
    cells: list[Any] = []

    def work(_server: Server, trial: Trial) -> tuple[str, dict[str, Any]]:
        cells.extend(bench(trial, plan))
        failed = any(cell.failed for cell in cells)
        return "failed" if failed else "passed", {"tool": "envgen", "cells": [cell.plain() for cell in cells]}

    outcome, summary, path = run(asked, "bench", {"tool": "envgen", **asdict(plan)}, work)
    if not asked.as_json:
        show_cells(cells)
    return finish(asked, outcome, summary, path)


def show_cells(cells: Sequence[Any]) -> None:
    """Print the measurements as the table of the lab notes."""
    rows = [("test", "t/s", "CV", "first token (ms)", "between tokens (ms)", "request (ms)")]
    for cell in cells:
        times = f" x{cell.concurrency}" if cell.concurrency > 1 else ""
        if cell.fault:
            rows.append(
                (f"pp{cell.prompt_tokens} tg{cell.output_tokens}{times}", f"{cell.failed} failed", "", "", "", "")
            )
        found = {name: str(one) for name, one in cell.figures.items()}
        spread = {name: f"{one.cv:.1%}" for name, one in cell.figures.items()}
        for name, key in ((f"pp{cell.prompt_tokens}", "prefill_tps"), (f"tg{cell.output_tokens}", "decode_tps")):
            if key not in found:
                continue
            prefill = key == "prefill_tps"
            other = f" (tg{cell.output_tokens})" if prefill else f" (pp{cell.prompt_tokens})"
            rows.append((
                name + other + times, found[key], spread[key], found.get("ttft_ms", "") if prefill else "",
                "" if prefill else found.get("itl_ms", ""), "" if prefill else found.get("latency_ms", ""),
            ))  # fmt: skip
    click.echo("\n".join(table(rows, right=range(1, len(rows[0])), indent="  ")))
    for cell in cells:
        if cell.fault:
            click.echo(f"  pp{cell.prompt_tokens} tg{cell.output_tokens}: {cell.fault}")


def _benchy(asked: Asked, plan: BenchPlan, tokenizer: str | None) -> int:
    from envgen.errors import UsageError
    from envgen.serve.benchy import benchy

    if plan.rate is not None:
        raise UsageError("llama-benchy has no open load: leave out --rate")
    cells: list[Any] = []

    def work(server: Server, trial: Trial) -> tuple[str, dict[str, Any]]:
        if server.engine is None or server.container is None:
            raise UsageError("llama-benchy runs in the service's container", hint="name it: --container NAME")
        folder = tokenizer or trial.target.root
        if not folder:
            raise UsageError("the server doesn't say where its model is", hint="name its folder: --tokenizer PATH")
        progress("  llama-benchy runs in the container; it may take minutes and says nothing until its end")
        found, told = benchy(
            server.engine, server.container.id, port=inner_port(server), model=trial.target.model, tokenizer=folder,
            plan=plan, seed=trial.seed, record=trial.record,
        )  # fmt: skip
        cells.extend(found)
        return "passed", {"tool": "llama-benchy", **told, "cells": [cell.plain() for cell in found]}

    outcome, summary, path = run(asked, "bench", {**asdict(plan), "tool": "llama-benchy"}, work)
    if not asked.as_json:
        show_cells(cells)
    return finish(asked, outcome, summary, path)


def inner_port(server: Server) -> int:
    """The port that the server has inside its container."""
    from urllib.parse import urlsplit

    from envgen.errors import UsageError

    outer = urlsplit(server.url).port
    ports = server.container.ports if server.container else ()
    found = next((port.container for port in ports if port.host == outer), None)
    if found is None:
        raise UsageError(f"the container does not publish port {outer}")
    return found
