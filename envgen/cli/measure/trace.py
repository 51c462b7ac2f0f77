"""`envgen trace`: one request with vLLM's profiler."""

from __future__ import annotations

import click

from envgen.app.measure import Asked, Server
from envgen.bench import checks
from envgen.bench.checks import Trial
from envgen.bench.record import Run
from envgen.cli.measure.common import report, server_options
from envgen.errors import UsageError


@click.command()
@server_options
def command(asked: Asked) -> int:
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
