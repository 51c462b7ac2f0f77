"""`envgen smoke`, `stress`, `bench`, `profile` and `accept`: try, load, measure, trace and judge a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import click

from envgen.bench import checks, record
from envgen.bench import trace as traces
from envgen.bench.checks import Trial
from envgen.bench.record import Run
from envgen.bench.tools import PLANS, TOOLS, Measured, Place, Plan, find_tool, measure_all, references
from envgen.cli.common import LARGEST, Figure
from envgen.cli.measure.common import Asked, Server, finish, report, server_of, server_options, with_options
from envgen.doctor.collect import program
from envgen.engine.base import ExecResult
from envgen.engine.process import terminable
from envgen.errors import UsageError
from envgen.inside.run import in_container
from envgen.render.environment import with_start_up
from envgen.text import progress, shorten


class Numbers(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """`512,2048`, each once, in the order given."""

    name = "N,..."

    def __init__(self, least: int) -> None:
        self.least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            found = tuple(dict.fromkeys(int(part) for part in str(value).split(",")))
        except ValueError:
            found = ()
        if not found or min(found) < self.least or max(found) > LARGEST:
            self.fail(f"{shorten(str(value), 60)!r} is not a list of numbers such as 512,2048", param, ctx)
        return found


def tool_options(function: Any) -> Any:
    """What `bench` and `accept` measure, and how."""
    return with_options(
        function,
        click.option("--pp", type=Numbers(1), help="Tokens of the prompt [default: 2048]."),
        click.option("--tg", type=Numbers(1), help="Tokens of the reply [default: 32]."),
        click.option("--depth", "-d", type=Numbers(0), help="Tokens in the context before [default: 0]."),
        click.option("--runs", "-r", type=click.IntRange(1, LARGEST), help="Repetitions [default: 3]."),
        click.option("--tool", type=click.Choice(list(TOOLS)), help="Who measures: llama-benchy (the default), or vllm "
                     "for `vllm bench serve`."),
        click.option("--tokenizer", metavar="PATH", help="For the tool: the model's folder or name."),
        click.option("--throwaway", is_flag=True, help="Run the tool in a container of its own, from the image of the "
                     "service."),
        click.option("--image", metavar="NAME", help="Run the tool in a throw-away container of this image."),
    )  # fmt: skip


def stress_options(function: Any) -> Any:
    """The load of `stress` and `accept`."""
    return with_options(
        function,
        click.option("--requests", "-n", type=click.IntRange(1, LARGEST), default=200, show_default=True,
                     help="Requests of the stress test."),
        click.option("--concurrency", "-c", type=click.IntRange(1, 4096), default=8, show_default=True,
                     help="How many at a time, in the stress test."),
    )  # fmt: skip


@click.command()
@server_options
def smoke(asked: Asked) -> int:
    """Try SERVICE (default: the one that serves), or the server at --url, in small tests.

    A short prompt; a chat, and a tool call where the server takes tools; no NaN or Inf among the log probabilities;
    four requests in parallel; a prefill of 4096 tokens (fewer where the model takes fewer); five repeats with
    less than 1 GB of memory growth. Exit code 1 when one fails.

    \b
    Examples:
      envgen smoke
      envgen smoke --url http://127.0.0.1:8080
    """
    return report(asked, "smoke", {}, lambda _server, trial, _run: checks.outcome(checks.smoke(trial)))


@click.command()
@server_options
@stress_options
def stress(asked: Asked, requests: int, concurrency: int) -> int:
    """Put SERVICE, or the server at --url, under load. Nothing may fail, nothing may pile up.

    Every fourth request is a chat. 0 failed requests, 0 answers of 5xx, no restart, no zombie process, memory growth
    under 5 GB. Exit code 1 when one of these doesn't hold, 5 when the server goes away.

    \b
    Examples:
      envgen stress --requests 1000 --concurrency 32
      envgen stress --url http://127.0.0.1:8080
    """

    def work(_server: Server, trial: Trial, _run: Run) -> checks.Outcome:
        criteria, load = checks.stress(trial, requests, concurrency)
        return checks.outcome(criteria, load=load)

    return report(asked, "stress", {"requests": requests, "concurrency": concurrency}, work)


@click.command()
@server_options
@click.option("--plan", type=click.Choice(list(PLANS)), help="A shipped matrix; options replace its values.")
@click.option("--concurrency", "-c", type=Numbers(1), help="How many clients at a time [default: 1].")
@tool_options
@click.option("--prefix-caching", is_flag=True, default=None, help="Fill the context first, and measure what follows.")
@click.option("--kernels", is_flag=True, help="Instead: compare attention with sinks and fused MoE with torch.")
def bench(
    asked: Asked, plan: str | None, tokenizer: str | None, throwaway: bool, image: str | None, kernels: bool,
    **given: Any,
) -> int:  # fmt: skip
    """Measure SERVICE, or the server at --url, with llama-benchy or `vllm bench serve`, in a container.

    Every depth is combined with every length of prompt and reply and every concurrency. Ctrl-C keeps the cells that are
    done. What the tool wrote itself is kept beside the record.

    \b
    Examples:
      envgen bench --plan seeds
      envgen bench --pp 512,2048 --tg 32,128 --depth 0,4096
      envgen bench --tool vllm --concurrency 1,8 --runs 10
      envgen bench --kernels dev
    """
    if kernels:
        if throwaway or image or plan or tokenizer or any(given.values()):
            hint = "envgen bench --kernels SERVICE: it runs in a running container, at sizes of its own"
            raise UsageError("--kernels takes no option of a measurement", hint=hint)
        return _kernels(asked)

    chosen = _plan(given, PLANS[plan] if plan else Plan())

    def work(server: Server, trial: Trial, run: Run) -> checks.Outcome:
        cells = _run_tool(trial, run, chosen, server.place(trial.target.root, tokenizer, image, throwaway))
        return "failed" if any(cell.failed for cell in cells) else "passed", _document(cells, chosen)

    return report(asked, "bench", {"plan": plan, **asdict(chosen)}, work)


def _plan(given: Mapping[str, Any], base: Plan) -> Plan:
    return replace(base, **{key: value for key, value in given.items() if value is not None})


@click.command()
@server_options
def profile(asked: Asked) -> int:
    """Trace one request to SERVICE (default: the one that serves) with vLLM's own torch profiler.

    The service must have been started with a profiler, as docs/benchmarking.md shows. The files that the server writes
    are copied beside the record, 256 MiB at most.

    \b
    Examples:
      envgen up serve --variant profile
      envgen profile serve
    """
    return report(asked, "trace", {}, _trace)


def _trace(server: Server, trial: Trial, run: Run) -> checks.Outcome:
    if server.engine is None or server.container is None:
        raise UsageError("the trace is in the server's container, and none is known", hint="--container NAME")
    folder = traces.folder_of(trial.environment.get("flags", ()), server.container.env)
    found = traces.capture(trial, server.engine, server.container.id, folder, run.raw)
    return "passed", {"files": found}


def _kernels(asked: Asked) -> int:
    """Compare attention with sinks and fused MoE, in a running container."""
    server = server_of(asked, serves=False)
    profile = server.profile
    assert server.engine and server.container
    inside = in_container(server.engine, server.container.id, workdir=str(profile.working_dir) if profile else "")

    def execute(argv: Sequence[str], stdin: bytes, seconds: float) -> ExecResult:
        return inside(with_start_up(argv) if profile else argv, stdin, seconds)

    told = server.environment
    with terminable(), record.start(asked.folder(server), "kernels", told, {"tokens": checks.KERNEL_TOKENS}) as kept:
        outcome, found = checks.kernels(execute, program(profile) if profile else "python3", kept.sample)
        kept.end(outcome, {"criteria": found["criteria"]})
    return finish(asked, outcome, found, kept.path)


def _run_tool(trial: Trial, run: Run, plan: Plan, place: Place) -> list[Measured]:
    """Measure the plan's cells; each is in the record before the next one begins."""
    tool = find_tool(place, trial.target, plan)
    progress(f"  {plan.tool} {tool.version} in {place.where}")
    run.sample({"unit": "tool", "tool": plan.tool, "version": tool.version, "where": place.where})

    def keep(one: Measured) -> None:
        name = str(one.cell).replace(" @ ", "-").replace(" ", "-")
        run.raw(f"{name}.json", one.raw.encode())
        run.raw(f"{name}.log", "\n".join([*one.log, ""]).encode())
        for sample in one.samples:
            run.sample(sample)
        for remark in one.remarks:
            progress(f"    {remark}")

    return measure_all(tool, keep)


def _document(cells: list[Measured], plan: Plan) -> dict[str, Any]:
    return {"tool": plan.tool, "cells": [cell.plain() for cell in cells]}


@click.command()
@server_options
@stress_options
@tool_options
@click.option("--reference", "-R", multiple=True, metavar="NAME",
              help="llama.cpp or SGLang (shipped figures), or a RUN.")  # fmt: skip
@click.option("--tolerance", type=Figure(0, 99), default=20, show_default=True, metavar="PERCENT",
              help="How far below a reference is still good.")  # fmt: skip
@click.option("--max-ttft", type=Figure(0, LARGEST, min_open=True), metavar="MS",
              help="Limit for the first token of a short prompt.")  # fmt: skip
@click.option("--max-per-token", type=Figure(0, LARGEST, min_open=True), metavar="MS", help="Limit for each token.")
def accept(
    asked: Asked, requests: int, concurrency: int, tokenizer: str | None, throwaway: bool, image: str | None,
    reference: tuple[str, ...], tolerance: float, max_ttft: float | None, max_per_token: float | None,
    **given: Any,
) -> int:  # fmt: skip
    """Run the whole acceptance list against SERVICE, or the server at --url. Exit code 0 only when all of it holds.

    What smoke and stress ask for; backends in the log as `ready.expect` and `ready.forbid` say, and CUDA graphs
    captured on a GPU; throughput within 20 % of the references; the named limits of latency; no zombie process at the
    end. What can't be checked is not accepted.

    \b
    Examples:
      envgen accept --reference llama.cpp --reference SGLang --max-ttft 100 --max-per-token 20
      envgen accept --reference latest --pp 2048 --depth 0,4096
    """
    chosen = _plan(given, Plan())
    wishes = checks.Wishes(references(reference, asked.folder()), tolerance / 100, max_ttft, max_per_token)

    def work(server: Server, trial: Trial, run: Run) -> checks.Outcome:
        place = server.place(trial.target.root, tokenizer, image, throwaway)
        ready = server.profile.services[server.service].ready if server.profile else None
        wanted = replace(wishes, expect=ready.expect, forbid=ready.forbid) if ready else wishes
        progress("smoke")
        parts = {"smoke": checks.smoke(trial)}
        shorts = trial.replies[-checks.REPEATS :]
        progress("stress")
        parts["stress"], load = checks.stress(trial, requests, concurrency)
        progress("bench")
        cells = _run_tool(trial, run, chosen, place)
        parts["bench"] = [*checks.throughput(cells, wanted), *checks.latency(cells, shorts, wanted)]
        log = server.engine.logs(server.container.id, tail=None) if server.engine and server.container else None
        parts["log"] = checks.log_shows(wanted, log, trial.environment.get("flags"), "gpu" in trial.environment)
        parts["end"] = [checks.zombies(after)] if (after := trial.look()) else []
        found = [replace(one, part=part) for part, criteria in parts.items() for one in criteria]
        return checks.outcome(found, strict=True, load=load, **_document(cells, chosen))

    parameters = {"requests": requests, "concurrency": concurrency, **asdict(chosen), "references": list(reference),
                  "tolerance": tolerance / 100}  # fmt: skip
    return report(asked, "accept", parameters, work)
