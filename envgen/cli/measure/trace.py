"""`envgen trace`: where does a token's time go?"""

from __future__ import annotations

from collections.abc import Iterator

import click

from envgen.app.measure import MeasureOptions, results_folder
from envgen.app.trace import trace
from envgen.bench.record import RunRecord, resolve
from envgen.bench.trace import lines_of
from envgen.binding import JsonObject
from envgen.cli.common import Count, ask, flag, option
from envgen.cli.measure.common import measuring, print_run
from envgen.text import table, visible


@click.command()
@measuring()
@click.option("--pp", type=Count(1), default=2048, show_default=True, help="Tokens in the prompt.")
@click.option("--tg", type=Count(2), default=32, show_default=True, help="Tokens in the reply.")
@option("--against, -a", "REF", "Show it beside a record (`latest`).")
@flag("--yes, -y", "Start the service again without asking.")
def command(asked: MeasureOptions, pp: int, tg: int, against: str | None, yes: bool) -> int:
    """Show which kernels take the time of SERVICE, for prefill and decode apart.

    The service is started again with vLLM's own profiler (PyTorch's), and without it at the end.
    One prompt is read, and one reply is generated, alone on the server. The profiler itself slows
    small kernels: compare shares, and take speed from `envgen bench`.

    \b
    Examples:
      envgen trace serve
      envgen trace serve --variant prod --against latest
    """
    folder = results_folder(asked.session.file)
    earlier = resolve(folder, against, "trace") if against else None
    (outcome, summary), path = trace(asked, pp, tg, lambda question: yes or ask(question))
    return print_run(outcome, summary, path, shown(summary, earlier))


def shown(summary: JsonObject, earlier: RunRecord | None = None) -> Iterator[str]:
    """The tables of a trace."""
    before = earlier.summary.get("phases", {}) if earlier else {}
    for phase, times in summary["phases"].items():
        wall = float(times.get("wall_us") or 0)
        is_gpu = times.get("device") == "gpu"
        unit = "the GPU" if is_gpu else "the CPU: operators, not kernels"
        yield f"{phase}: {wall / 1000:,.1f} ms on {unit}"
        lines = lines_of(times, before.get(phase))
        figures = range(1, len(lines[0]))
        yield from map(visible, table(lines, right=figures, indent="  "))
    for line in summary["log"]:
        yield visible(f"beside it, the log's word: {line}")
