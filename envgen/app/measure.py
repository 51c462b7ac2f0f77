"""Measure a server: find it, record the run, and explain why it stopped answering."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from envgen import __version__
from envgen.app.cluster.machines import head_of
from envgen.app.containers import changed
from envgen.app.failed import failed
from envgen.app.session import Session, the_service, with_running_variant
from envgen.bench import record
from envgen.bench.checks import FAILED, PASSED, Outcome, fault_of
from envgen.bench.client import BenchTarget, ServerGone, find
from envgen.bench.facts import RunningService
from envgen.bench.record import Run
from envgen.bench.targets import at_least, gaps
from envgen.bench.tools import BenchTool, CellResult, Matrix, find_tool, measure_all
from envgen.binding import JsonDict, JsonObject
from envgen.deployment import LiveService
from envgen.engine.client import connect
from envgen.engine.process import terminable
from envgen.errors import EngineError, EnvgenError, ResultsError, ServiceError, UsageError
from envgen.inside import run
from envgen.live import moving
from envgen.profile.flags import takes_no_prompt
from envgen.profile.load import find as find_project
from envgen.profile.model import Profile, Target
from envgen.redact import without_login
from envgen.serve.ended import StartFailure, ending
from envgen.text import progress

ENDING = 5.0  # seconds for a program to end after its port has closed
SETTLED = 2.0  # seconds for the engine to notice that a container ended


@dataclass(frozen=True)
class MeasureOptions:
    """The options of the commands that measure."""

    session: Session
    service: str | None
    url: str | None = None
    model: str | None = None
    key_variable: str | None = None
    timeout: int = 300


@dataclass(frozen=True)
class Measurement:
    """A server that is measured. ``service``: None with --url. ``environment``: as the record has
    it.
    """

    asked: MeasureOptions
    service: RunningService | None
    target: BenchTarget
    environment: JsonObject

    @property
    def flags(self) -> Sequence[str]:
        """The server's arguments; none if they are unknown."""
        return tuple(self.environment.get("flags", ()))

    def tool(self, plan: Matrix, tokenizer: str | None = None) -> BenchTool:
        """The plan's tool in the service's container, or for a server at --url in a new one of the
        profile's image.
        """
        folder = tokenizer or self.target.root
        service = self.service
        if not folder:
            raise UsageError(
                "the server does not report its model's folder", hint="name it: --tokenizer PATH"
            )
        if service is None:
            deployment = self.asked.session.deployment()
            image = deployment.profile.image_name
            execute = run.in_image(deployment.engine, image, network="host")
            return find_tool(
                BenchTool(plan, self.target, execute, self.target.url, folder, f"image {image}")
            )
        outer = urlsplit(self.target.url).port
        ready = service.described.ready
        inner = ready.port if ready else None
        for port in service.container.ports:
            if port.host == outer:
                inner = port.container
                break
        url = f"http://127.0.0.1:{inner or outer}"
        execute = run.in_container(service.engine, service.container.id)
        return find_tool(
            BenchTool(plan, self.target, execute, url, folder, "the image of the service")
        )


def service_of(asked: MeasureOptions) -> RunningService | None:
    """The profile's running service; None with --url. UsageError, NotFoundError."""
    if asked.url is not None:
        if asked.service:
            raise UsageError("a service and --url exclude each other")
        return None
    session = asked.session
    if not session.variant:
        session = with_running_variant(session, asked.service, connect)
    deployment = session.deployment()
    profile = deployment.profile
    publishing = [name for name, service in profile.services.items() if service.host_ports]
    hint = "add one to its `ports`, or name a server: --url URL"
    name = the_service(profile, asked.service, publishing, "publishes no port", hint)
    head = head_of(deployment, name)
    return RunningService(head, name, LiveService(head, name).running())


Work = Callable[[Measurement, Run], Outcome]


def measure(
    asked: MeasureOptions, kind: str, parameters: JsonObject, work: Work
) -> tuple[Outcome, Path]:
    """Find the server, do the ``work`` and record it. Returns the outcome and the record's path.

    Ctrl-C leaves the record unfinished and the service running. If the server stops answering, the
    record says so, and ServiceError has the reason.
    """
    service = service_of(asked)
    if service and takes_no_prompt(service.described.flag):
        what = f"{service.name} serves a model that embeds, ranks or classifies, and `envgen {kind}` sends prompts"
        raise UsageError(what, hint="ask it for its task with curl, for instance at /v1/embeddings")
    expected = service.described.served_name if service else None
    url = service.reachable_url() if service else str(asked.url)
    target = find(
        url, model=asked.model, key=_key(asked, service), silence=asked.timeout, expected=expected
    )
    session = asked.session
    environment = {
        "envgen": __version__,
        "url": without_login(target.url),
        "model": target.model,
        **(service.environment() if service else {}),
        "sets": session.sets,
        "file": session.file and session.file.name,
        "differs": service and any(changed(service.deployment, [service.container]).values()),
    }
    given = {**parameters, "max_len": target.max_len}
    with (
        terminable(),
        record.start(results_folder(session.file), kind, environment, given) as run,
    ):
        try:
            with moving(kind):
                outcome, summary = work(Measurement(asked, service, target, environment), run)
        except KeyboardInterrupt:
            kept = f"; the results so far are in {run.path}" if run.samples else ""
            progress(f"\ninterrupted{kept}; the server keeps running")
            raise
        except ResultsError:  # the record can't be written
            raise
        except EnvgenError as error:
            raise _broken_off(error, service, run) from None
        run.end(outcome, summary)
    return (outcome, summary), run.path


def _broken_off(error: EnvgenError, service: RunningService | None, run: Run) -> EnvgenError:
    """End the record of a run that failed. Returns the error to raise."""
    gone = isinstance(error, ServerGone)
    # A tool in its container ends before the engine knows of the container.
    if not gone and service is not None:
        gone = not service.lives(SETTLED)
    ended = "server gone" if gone else "error"
    run.end(ended, {"error": str(error), "samples": run.samples})
    kept = f"the results so far are in {run.path}" if run.samples else ""
    problem = error.problems[0]
    if gone:
        return _stop_error(f"the server stopped answering: {problem.message}", service, kept)
    if kept and isinstance(error, ServiceError):
        return ServiceError(f"{problem.message}\n  {kept}", hint=problem.hint)
    return error


def run_tool(
    trial: Measurement, run: Run, plan: Matrix, tokenizer: str | None = None
) -> tuple[str, list[CellResult]]:
    """Run the plan, recording each cell before the next one begins. Returns the tool's name and its
    results.
    """
    tool = trial.tool(plan, tokenizer)
    if fault := fault_of(trial.target, 8):
        raise ServiceError(f"a prompt of 8 tokens before the benchmark: {fault}")
    progress(f"  {tool.plan.tool} {tool.version} in {tool.where}")
    run.sample(
        {"unit": "tool", "tool": tool.plan.tool, "version": tool.version, "where": tool.where}
    )

    def keep(result: CellResult) -> None:
        name = str(result.cell).replace(" @ ", "-").replace(" ", "-")
        run.raw(f"{name}.json", result.raw.encode())
        for sample in result.samples:
            run.sample(sample)
        for remark in result.remarks:
            progress(f"    {remark}")

    return tool.plan.tool, measure_all(tool, keep)


def bench(plan: Matrix, tokenizer: str | None = None, least: str | None = None) -> Work:
    """What `measure` does for `envgen bench`. ``least``: as --at-least has it."""

    def work(trial: Measurement, run: Run) -> Outcome:
        service = trial.service
        targets = {}
        if service:
            targets = targets_of(service.profile, service.name)
        limit = at_least(least, targets) if least else None
        tool, cells = run_tool(trial, run, plan, tokenizer)
        summary = cells_document(tool, cells)
        rows = gaps(targets, summary["cells"])
        summary["targets"] = [row.plain() for row in rows]
        if service:
            vitals = service.vitals()
            of_gpu = vitals.gpu_memory or 0
            summary["memory"] = vitals.memory + of_gpu
        missed = []
        has_failed = any(cell.failed for cell in cells)
        if limit:
            missed = limit.missed(rows)
            has_failed = bool(missed) or any(cell.fault for cell in cells)
        summary["missed"] = [str(row) for row in missed]
        return FAILED if has_failed else PASSED, summary

    return work


def targets_of(profile: Profile, service: str) -> dict[str, Target]:
    """The targets for the model of a service."""
    described = profile.services[service]
    repo = described.model.repo if described.model else described.served_name
    return {name: target for name, target in profile.targets.items() if target.model == repo}


def cells_document(tool: str, cells: list[CellResult]) -> JsonDict:
    return {"tool": tool, "cells": [cell.plain() for cell in cells]}


def results_folder(file: Path | None = None) -> Path:
    """The folder of the records: beside the project ``file``, or in the current folder without a
    project.
    """
    try:
        return (file or find_project(Path.cwd())).absolute().parent / "results"
    except UsageError:
        return Path.cwd() / "results"


def _key(asked: MeasureOptions, service: RunningService | None) -> str:
    shell = service.deployment.shell if service else os.environ
    if asked.key_variable is None:
        return service.api_key if service else ""
    if not (key := shell.get(asked.key_variable, "")):
        raise UsageError(f"--api-key-env: the variable {asked.key_variable} is not set, or empty")
    return key


def _stop_error(reason: str, service: RunningService | None, kept: str) -> EnvgenError:
    """The error for a server that stopped answering, with the end of its container, for which it
    waits some seconds.
    """
    if service is None:
        return ServiceError(f"{reason}; {kept}")
    service.lives(ENDING)
    try:
        now = service.engine.container(service.container.id)
        how = "its process still runs" if now and now.running else ending(now).reason
        text = "; ".join(filter(None, (reason, how, kept)))
        again = f"{service.hint('up')} starts it again"
        return failed(service, StartFailure(text, now), verdict="failed", hint=again)
    except EngineError as error:
        return ServiceError(f"{reason}; {kept}; {error}")
