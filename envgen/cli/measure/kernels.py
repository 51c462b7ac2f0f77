"""`envgen bench --kernels`: the kernels of a running container against torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from envgen.bench import facts, kernels, record
from envgen.bench.checks import Criterion
from envgen.cli.measure.common import Asked, finish, running, show_criteria
from envgen.doctor import collect
from envgen.engine.base import ExecResult
from envgen.engine.process import terminable
from envgen.inside import run
from envgen.render.environment import with_start_up
from envgen.text import progress, table


def compare(asked: Asked) -> int:
    """Compare attention with sinks and fused MoE, print one table, write a record."""
    server = running(asked)
    engine, container = server.engine, server.container
    assert engine and container
    profile = server.profile
    inside = run.in_container(engine, container.id, workdir=str(profile.working_dir) if profile else "")
    python = collect.program(profile) if profile else "python3"

    def execute(argv: Sequence[str], stdin: bytes, seconds: float) -> ExecResult:
        return inside(with_start_up(argv) if profile else argv, stdin, seconds)

    environment = facts.collect(url="", model="", engine=engine, container=container, profile=profile,
                                root=server.root, service=server.service)  # fmt: skip
    folder = asked.results or (server.root or Path.cwd()) / "results"
    rows: list[dict[str, Any]] = []
    judged: list[Criterion] = []
    left: list[Criterion] = []
    with terminable(), record.start(folder, "kernels", environment, {"tokens": kernels.TOKENS}) as kept:
        for name, title in kernels.TITLES.items():
            progress(f"  {title}: up to {kernels.SECONDS / 60:.0f} minutes")
            found, verdicts, not_run = kernels.compare(execute, python, name)
            rows, judged, left = rows + found, judged + verdicts, left + not_run
        for row in rows:
            kept.sample({"unit": "kernel", **row})
        outcome = kernels.outcome([*judged, *left])
        summary = {"criteria": [one.plain() for one in (*judged, *left)]}
        kept.end(outcome, summary)
    if not asked.as_json:
        click.echo("\n".join(_shown(rows)))
        show_criteria(left)
    return finish(asked, outcome, {"rows": rows, **summary}, kept.path)


def _shown(rows: list[dict[str, Any]]) -> list[str]:
    if not rows:
        return []
    lines = [("KERNEL", "BY", "SHAPE", "ERROR", "ALLOWED", "MICROSECONDS", "")]
    for row in rows:
        error = "not finite" if row["error"] is None else f"{row['error']:.4f}"
        time = "-" if row["microseconds"] is None else f"{row['microseconds']:.1f}"
        verdict = "" if row["right"] is True else "WRONG"
        lines.append((row["kernel"], row["by"], row["shape"], error, f"{row['tolerance']:g}", time, verdict))
    return table(lines, right=(3, 4, 5))
