"""`envgen smoke`, `bench`, `trace` and `accept`."""

from __future__ import annotations

import functools
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from envgen.app import checks as kernel_checks
from envgen.app.cluster.machines import head_of
from envgen.app.measure import Asked, Server, Work, measure
from envgen.app.session import Session, with_running_variant
from envgen.bench import checks, record
from envgen.bench.checks import Trial
from envgen.bench.client import Reply, draft_counts
from envgen.bench.compare import FigureRange
from envgen.bench.record import METRICS, Run
from envgen.bench.tools import TOOLS, CellResult, Matrix, ToolHost, find_tool, measure_all, references
from envgen.cli.common import LARGEST, Count, Figure, answer, reporting, variant_option
from envgen.deployment import known_service
from envgen.doctor.model import Subject
from envgen.engine.process import terminable
from envgen.errors import ExitCode, UsageError
from envgen.live import moving
from envgen.text import progress, shorten, table, visible

PARTS = ("smoke", "load", "bench", "log")  # of accept
MARKS = {"passed": "ok  ", "failed": "FAIL", "not checked": "?   "}


def server_options(function: Any) -> Any:
    """Add the options that choose the server; the command receives one ``asked``."""
    options = [
        click.argument("service", required=False),
        click.option("--url", metavar="URL", help="Use this server instead of the profile's service."),
        click.option("--model", metavar="NAME", help="The served model to use (default: the only one)."),
        click.option("--container", metavar="NAME", help="With --url: the container of the server."),
        click.option("--api-key-env", "key_variable", metavar="NAME", help="The variable that holds the API key."),
        click.option("--timeout", type=Count(1), default=300, show_default=True, metavar="SECONDS",
                     help="A request or tool without output for this long has failed."),
        click.option("--results", type=click.Path(path_type=Path, file_okay=False), metavar="FOLDER",
                     help="Write the record to FOLDER (default: results/ beside the project file)."),
    ]  # fmt: skip

    @functools.wraps(function)
    def wrapper(session: Session, **given: Any) -> Any:
        require_extra()
        ours = {one.name: given.pop(one.name) for one in fields(Asked) if one.name in given}
        return function(asked=Asked(session, **ours), **given)

    return reporting(variant_option(with_options(wrapper, *options)))


def with_options(function: Any, *options: Callable[[Any], Any]) -> Any:
    """Add the options in this order."""
    return functools.reduce(lambda decorated, option: option(decorated), reversed(options), function)


def report(asked: Asked, kind: str, parameters: Mapping[str, Any], work: Work) -> int:
    """Measure and print the result. Returns the exit code."""
    (outcome, summary), path = measure(asked, kind, parameters, work)
    return finish(outcome, summary, path)


def finish(outcome: str, summary: Mapping[str, Any], path: Path) -> int:
    """Print the result of a run. Returns the exit code."""
    code = ExitCode.OK if outcome == "passed" else ExitCode.FINDINGS
    lines = (*shown(summary), f"{outcome}; the record is {path}")
    return answer({"outcome": outcome, "record": str(path), **summary}, lines, code)


def shown(summary: Mapping[str, Any]) -> Iterator[str]:
    """The summary of a run as lines: its criteria, load, cells and files, if any."""
    for one in summary.get("criteria", ()):
        yield visible(f"  {MARKS[one['verdict']]}  {one['part'] and one['part'] + ': '}{one['name']}: {one['seen']}")
        more = [f"wanted: {one['wanted']}"] if one["verdict"] != "passed" else []
        yield from (visible(f"        {text}") for text in (*more, one["note"]) if text)
    if load := summary.get("load"):
        yield (f"  {load['requests']} requests in {load['seconds']:.1f} s: {load['requests_per_s']:.2f} requests/s, "
               f"{load['total_tps']:.1f} generated tokens/s")  # fmt: skip
        for name, title in (("ttft_ms", "first token"), ("latency_ms", "whole request")):
            if load[name]:
                yield f"  {title}: " + ", ".join(f"{key} {value:.1f} ms" for key, value in load[name].items())
    if cells := summary.get("cells"):
        names = [name for name in METRICS if any(name in cell for cell in cells)]
        found = [("test", *(f"{METRICS[name].label}, {METRICS[name].unit}" for name in names))]
        found += [(cell["test"], *(str(FigureRange(**cell[name])) if name in cell else "-" for name in names))
                  for cell in cells]  # fmt: skip
        yield from table(found, right=range(1, len(names) + 1), indent="  ")
        yield from (visible(f"  {cell['test']}: {note}") for cell in cells for note in cell["remarks"])
    for name, size in summary.get("files", {}).items():
        yield visible(f"  {name}: {size / 1e6:.1f} MB")


def require_extra() -> None:
    """UsageError with what to install, unless the libraries of the extra `bench` are installed."""
    if missing := [name for name in ("aiohttp", "scipy") if find_spec(name) is None]:
        pip = [sys.executable, "-m", "pip", "install"]
        if find_spec("pip") is None:  # as in an environment made by uv
            pip = ["uv", "pip", "install", "--python", sys.executable]
        command = shlex.join([*pip, *missing])  # not `envgen[bench]`: envgen is not on a package index
        raise UsageError(f"this command needs {' and '.join(missing)} (the extra `bench`)", hint=f"run `{command}`")


class Numbers(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """`512,2048`: numbers without duplicates, in the order given."""

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
    """Add the options for what `bench` and `accept` measure, and how."""
    return with_options(
        function,
        click.option("--pp", type=Numbers(1), help="Tokens in the prompt (default: 2048)."),
        click.option("--tg", type=Numbers(1), help="Tokens in the reply (default: 32)."),
        click.option("--depth", "-d", type=Numbers(0), help="Tokens in the context before the prompt (default: 0)."),
        click.option("--runs", "-r", type=Count(1), metavar="N",
                     help="Repetitions of each measurement (default: 3)."),
        click.option("--tool", type=click.Choice(list(TOOLS)),
                     help="llama-benchy (default if the image has it), or vllm for `vllm bench serve`."),
        click.option("--tokenizer", metavar="PATH", help="The tokenizer for the tool: a folder or a model's name."),
        click.option("--throwaway", is_flag=True, help="Run the tool in a separate container of the service's image."),
        click.option("--image", metavar="NAME", help="Run the tool in a separate container of this image."),
    )  # fmt: skip


@click.command()
@server_options
def smoke(asked: Asked) -> int:
    """Run quick checks against the model server SERVICE (default: the only one), or the server at --url.

    Sends a short prompt, a chat (with a tool call, if the server supports tools), four requests in parallel, and a
    prompt of 4096 tokens (or what the model takes). Fails if log probabilities have NaN or Inf, or if memory grows by 1
    GB or more over five repeats. Exits with 1 if a check fails.

    \b
    Examples:
      envgen smoke
      envgen smoke --url http://127.0.0.1:8080
    """
    return report(asked, "smoke", {}, lambda _server, trial, _run: checks.outcome(checks.smoke(trial)))


@click.command()
@server_options
@click.option("--concurrency", "-c", type=Numbers(1), help="Requests at once (default: 1).")
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
def bench(
    asked: Asked, tokenizer: str | None, throwaway: bool, image: str | None, kernels: bool, kernel: str | None,
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
        others = (asked.url, asked.model, asked.container, asked.key_variable, tokenizer, throwaway, image)
        if any(others) or any(value is not None for value in given.values()):
            raise UsageError("--checks goes with SERVICE and its own options, --profile, --variant and --results alone")
        return _bench_checks(asked, chosen_kernels)
    chosen = _plan(given)

    def work(server: Server, trial: Trial, run: Run) -> checks.Outcome:
        tool, cells = _run_tool(trial, run, chosen, server.place(trial.target.root, tokenizer, image, throwaway))
        return "failed" if any(cell.failed for cell in cells) else "passed", _document(tool, cells)

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


def _plan(given: Mapping[str, Any]) -> Matrix:
    return Matrix(**{key: value for key, value in given.items() if value is not None})


@click.command()
@server_options
def trace(asked: Asked) -> int:
    """Trace one request to the model server SERVICE (default: the only one) with vLLM's torch profiler.

    The server must run with a profiler: docs/benchmarking.md has a variant for it. The trace files, at most 256 MiB,
    are copied beside the record.

    \b
    Example:
      envgen trace serve
    """
    return report(asked, "trace", {}, _trace)


def _trace(server: Server, trial: Trial, run: Run) -> checks.Outcome:
    if server.engine is None or server.container is None:
        raise UsageError("the server's container, which has the trace, is unknown", hint="add --container NAME")
    folder = checks.folder_of(trial.environment.get("flags", ()), server.container.env)
    found = checks.capture(trial, server.engine, server.container.id, folder, run.raw)
    return "passed", {"files": found}


def _run_tool(trial: Trial, run: Run, plan: Matrix, place: ToolHost) -> tuple[str, list[CellResult]]:
    """Run the plan, recording each cell before the next one begins. Returns the tool's name and its results."""
    tool = find_tool(place, trial.target, plan)
    progress(f"  {tool.plan.tool} {tool.version} in {place.where}")
    run.sample({"unit": "tool", "tool": tool.plan.tool, "version": tool.version, "where": place.where})

    def keep(one: CellResult) -> None:
        name = str(one.cell).replace(" @ ", "-").replace(" ", "-")
        run.raw(f"{name}.json", one.raw.encode())
        run.raw(f"{name}.log", "\n".join([*one.log, ""]).encode())
        for sample in one.samples:
            run.sample(sample)
        for remark in one.remarks:
            progress(f"    {remark}")

    return tool.plan.tool, measure_all(tool, keep, functools.partial(draft_counts, trial.target))


def _document(tool: str, cells: list[CellResult]) -> dict[str, Any]:
    return {"tool": tool, "cells": [cell.plain() for cell in cells]}


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
def accept(
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
    chosen = _plan(given)
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
            tool, cells = _run_tool(trial, run, chosen, place)
            parts["bench"] = [*checks.throughput(cells, wanted), *checks.latency(cells, shorts, wanted)]
            more |= _document(tool, cells)
        if "log" in parts_run:
            log = server.engine.logs(server.container.id, tail=None) if server.engine and server.container else None
            parts["log"] = checks.log_shows(wanted, log, trial.environment.get("flags"), "gpu" in trial.environment)
        parts["end"] = [checks.zombies(after)] if (after := trial.look()) else []
        found = [replace(one, part=part) for part, criteria in parts.items() for one in criteria]
        return checks.outcome(found, strict=True, **more)

    parameters = {"requests": requests, "concurrency": concurrency, **asdict(chosen), "references": list(reference)}
    parameters |= {"only": list(only)} if only else {}
    return report(asked, "accept", parameters, work)
