"""`envgen accept`: smoke, stress and bench against the acceptance list, as one verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from envgen.cli.bench import numbers, show_cells
from envgen.cli.common import LARGEST, Figure
from envgen.cli.stress import show_load
from envgen.cli.trial import Asked, Server, finish, run, show_criteria, trial_options

if TYPE_CHECKING:
    from envgen.serve.trial import Trial


def references(_ctx: click.Context, parameter: click.Parameter, pairs: tuple[str, ...]) -> dict[str, float]:
    """`llama.cpp=57.85` as a mapping."""
    found = {}
    for pair in pairs:
        name, _, speed = pair.rpartition("=")
        try:
            found[name] = float(speed)
        except ValueError:
            found[name] = 0.0
        if not name or not 0 < found[name] < 1e9:
            raise click.BadParameter(f"{pair!r} is not NAME=T/S such as llama.cpp=57.85", param=parameter)
    return found


@click.command()
@trial_options
@click.option(
    "--requests", "-n", type=click.IntRange(1, LARGEST), default=200, show_default=True, help="Of the stress test."
)
@click.option("--concurrency", "-c", type=click.IntRange(1, 4096), default=8, show_default=True,
              help="Of the stress test.")  # fmt: skip
@click.option("--prompt-tokens", "--pp", default="2048", show_default=True, callback=numbers, metavar="N,...",
              help="Of the measurement.")  # fmt: skip
@click.option("--output-tokens", "--tg", default="32", show_default=True, callback=numbers, metavar="N,...")
@click.option("--repeats", "-r", type=click.IntRange(1, LARGEST), default=5, show_default=True)
@click.option("--reference", "-R", multiple=True, callback=references, metavar="NAME=T/S",
              help="The decode throughput of another engine on this machine.")  # fmt: skip
@click.option("--tolerance", type=Figure(0, 99), default=20, show_default=True, metavar="PERCENT",
              help="How far below a reference is still good.")  # fmt: skip
@click.option("--explain", default="", metavar="TEXT", help="Why it is slower; kept in the record.")
def command(
    asked: Asked,
    requests: int,
    concurrency: int,
    prompt_tokens: tuple[int, ...],
    output_tokens: tuple[int, ...],
    repeats: int,
    reference: dict[str, float],
    tolerance: float,
    explain: str,
) -> int:
    """Run the whole acceptance list against SERVICE, or the server at --url. Exit code 0 only when all of it holds.

    What smoke and stress ask for; the backends in the log as the profile's `ready.expect` and `ready.forbid` say; the
    decode within 20 % of the references, or an explanation; no zombie process at the end. What can't be checked is not
    accepted.

    \b
    Example:
      envgen accept --reference llama.cpp=57.85 --reference SGLang=52
      envgen accept --profile cpu --pp 256 --reference last_week=240 --json
    """
    from dataclasses import asdict

    from envgen.serve.accept import Accepted, Wishes, accept
    from envgen.serve.bench import BenchPlan
    from envgen.serve.stress import StressPlan

    done: list[Accepted] = []

    def work(server: Server, trial: Trial) -> tuple[str, dict[str, Any]]:
        service = server.profile.services[server.service] if server.profile else None
        ready = service.ready if service else None
        wishes = Wishes(
            StressPlan(requests, concurrency), BenchPlan(prompt_tokens, output_tokens, repeats=repeats), reference,
            tolerance / 100, explain, ready.expect if ready else None, ready.forbid if ready else None,
        )  # fmt: skip
        engine, container = server.engine, server.container
        log = (lambda: engine.logs(container.id, tail=None)) if engine and container else None
        done.append(accept(trial, wishes, log))
        return done[0].verdict, {
            "criteria": [{"part": part, **one.plain()} for part, one in done[0].criteria],
            "load": dict(done[0].load),
            "cells": [cell.plain() for cell in done[0].cells],
        }

    parameters = {
        "requests": requests, "concurrency": concurrency, "bench": asdict(BenchPlan(prompt_tokens, output_tokens)),
        "references": reference, "tolerance": tolerance / 100, "explanation": explain,
    }  # fmt: skip
    outcome, summary, path = run(asked, "accept", parameters, work)
    if not asked.as_json:
        show_criteria(done[0].criteria)
        show_load(summary["load"])
        show_cells(done[0].cells)
    return finish(asked, "passed" if outcome == "passed" else "failed", summary, path)
