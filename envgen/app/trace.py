"""`envgen trace`: the service with vLLM's profiler, one request for each phase, and back again."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from envgen.app.measure import Measurement, MeasureOptions, measure, service_of
from envgen.app.stage import VariantSwitch
from envgen.bench.checks import FAILED, PASSED, Outcome, fault_of
from envgen.bench.client import ServerGone
from envgen.bench.record import Run
from envgen.binding import JsonObject
from envgen.errors import RefusedError, ServiceError, UsageError
from envgen.inside import run as inside
from envgen.live import doing
from envgen.serve.events import answered

PROGRAM = inside.Program("kernels", bytes=8 << 20)
FOLDER = "/tmp/envgen-trace"
READING = 600.0  # seconds to sum a trace
LARGEST = 512 << 20  # bytes of a trace that is kept
# With a table of its own, which takes long, left out.
CONFIG = (
    f'{{"profiler": "torch", "torch_profiler_dir": "{FOLDER}", "torch_profiler_with_stack": false, '
    '"torch_profiler_dump_cuda_time_total": false, "ignore_frontend": true}'
)


def trace(
    asked: MeasureOptions,
    prompt: int,
    output: int,
    agree: Callable[[str], bool],
) -> tuple[Outcome, Path]:
    """Trace a prompt of ``prompt`` tokens, and ``output`` tokens of a reply.

    The service is started again with the profiler after ``agree``, and without it at the end.
    Returns the outcome and the record's path.
    """
    running = service_of(asked)
    if running is None or not running.described.is_vllm_server:
        raise UsageError(
            "only a vLLM service of the profile can be traced",
            hint="envgen trace SERVICE; another server's own profiler is its own affair",
        )
    service = running.name
    if running.described.flag("profiler-config"):
        raise UsageError(
            f"services.{service}.args names a profiler-config already",
            hint=f"remove it: `envgen trace {service}` adds its own for as long as it measures",
        )
    if not agree(f"{service} is started again with the profiler, and without it later. Do it?"):
        raise RefusedError(f"a trace starts {service} again, twice", hint="add --yes")
    setting = f"services.{service}.args.profiler-config={CONFIG}"
    with VariantSwitch(asked.session, service) as stage:
        session = asked.session if asked.session.variant else stage.before or asked.session
        form = session.with_(sets=(*session.sets, setting))
        stage.show(form)
        return measure(
            replace(asked, session=form, service=service),
            "trace",
            {"prompt": prompt, "output": output},
            lambda trial, run: _work(trial, run, prompt, output),
        )


def _work(trial: Measurement, run: Run, prompt: int, output: int) -> Outcome:
    """Profile each phase alone. What is compiled at its first use is used before."""
    _complete(trial, prompt, output)
    summary = {}
    for phase, length in (("prefill", 1), ("decode", output)):
        with doing("trace", phase):
            _post(trial, "/start_profile")
            try:
                _complete(trial, prompt, length)
            finally:
                _post(trial, "/stop_profile")
            summary[phase] = _summed(trial, run, phase)
        run.sample({"unit": "trace", "phase": phase, **summary[phase]})
    is_whole = all(phase.get("kernels") for phase in summary.values())
    log = trial.environment.get("kernels", [])
    settings = trial.service.settings() if trial.service else ""
    found = {"phases": summary, "log": log, "settings": settings}
    return PASSED if is_whole else FAILED, found


def _complete(trial: Measurement, prompt: int, output: int) -> None:
    if fault := fault_of(trial.target, prompt, output):
        raise ServiceError(f"the request to trace: {fault}")


def _post(trial: Measurement, path: str) -> None:
    target = trial.target
    try:
        status, content = answered(
            "POST", target.url + path, target.headers, target.silence, json={}
        )
    except OSError as error:
        raise ServerGone(f"{target.url}{path}: {error}") from None
    if status != 200:
        raise ServiceError(
            f"{path} answered with {status}: {content[:200].decode('utf-8', 'replace')!r}",
            hint="this vLLM has no profiler of that kind: `vllm serve --help=profiler-config` lists its own",
        )


def _summed(trial: Measurement, run: Run, phase: str) -> JsonObject:
    """The profiler's traces of a phase, summed in the container. The trace itself lies beside the
    record, for Perfetto.
    """
    service = trial.service
    assert service is not None  # a trace is of a service
    execute = inside.in_container(service.engine, service.container.id)
    request = {"folder": FOLDER, "decode": phase == "decode"}
    summary = inside.ask(execute, "python3", PROGRAM, request, timeout=READING)
    if isinstance(summary, inside.NoAnswer):
        raise ServiceError(f"the trace could not be read: {summary}")
    if file := summary.pop("file", ""):
        content = b""
        part = b"more"
        while part and len(content) < LARGEST:
            script = f"tail -c +{len(content) + 1} {shlex.quote(file)} | head -c 8388608"
            part = execute(["sh", "-c", script], b"", READING).stdout
            content += part
        execute(["rm", file], b"", READING)  # the next phase has its own
        run.raw(f"{phase}.json{'.gz' * file.endswith('.gz')}", content)
    return summary
