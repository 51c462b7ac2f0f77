"""`envgen sweep`: compare the variants of a service."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click

from envgen.app import predict, results, sweep
from envgen.app.measure import MeasureOptions
from envgen.app.session import Session
from envgen.app.stage import VariantSwitch
from envgen.bench import matrix
from envgen.bench.checks import PASSED
from envgen.binding import JsonObject
from envgen.cli.common import answer, ask, flag, option
from envgen.cli.measure.common import MATRIX, TOOL, matrix_of, measuring
from envgen.deployment import known_service
from envgen.errors import ExitCode, RefusedError, UsageError
from envgen.text import table, visible

VARIANTS = option(
    "--variants",
    "A,B,...",
    "Variants of the profile, a+b for two of them, `plain` for none, other profiles, or `fitting` for each "
    "backend that vLLM would take (`envgen predict`).",
)


@click.command()
@measuring(VARIANTS, *MATRIX, TOOL)
@flag("--no-bench", "Compare answers alone.")
@flag("--quick", "Ask eight of the questions.")
@flag("--fresh", "Begin anew, even if the last such sweep was interrupted.")
@flag("--missing", "The variants that say TODO in the matrix.")
@flag("--dry-run", "Show the matrix as it is, and measure nothing.")
@flag("--yes, -y", "Stop the service that runs without asking.")
def command(
    asked: MeasureOptions,
    variants: str | None,
    no_bench: bool,
    quick: bool,
    fresh: bool,
    missing: bool,
    dry_run: bool,
    yes: bool,
    **given: Any,
) -> int:
    """Start SERVICE in each variant, one after the other, and compare answers and speed in one
    table.

    Each variant must become ready, so its log must match `ready`; then its answers are compared
    with the first one's (`envgen answers`), its speed is measured (`envgen bench`), and it is
    stopped. One that fails is a row with its cause; one whose answers differ is marked. After an
    interruption the same command continues. At the end what ran before starts again.

    Exits with 1 if a variant failed, or if answers differ. Rows are kept in the project's matrix,
    results/matrix.md: for each variant the best and the newest, with what they were made of.

    \b
    Examples:
      envgen sweep serve --variants plain,cutlass,flashinfer,cutlass+eagle3 --yes
      envgen sweep serve --variants fitting --quick --no-bench
      envgen sweep serve --dry-run
      envgen sweep serve --missing
    """
    session = asked.session
    service = asked.service or predict.choose_service(session.profile(), None)
    known_service(session.profile(), service)
    listed = (name.strip() for name in (variants or "").split(","))
    names = list(filter(None, listed))
    forms = sweep.forms_of(session, service, names)
    plan = matrix_of(given)
    tests = list(map(str, plan.cells()))
    rows, _ = results.table(session, service, names, tests)
    if dry_run:
        return _show_matrix(session, service, rows)
    if missing:
        lacking = [row.variant for row in rows if not row.run]
        if not lacking:
            return answer({"rows": []}, ["nothing is missing: each variant has a row"])
        forms = sweep.forms_of(session, service, lacking)
    if not forms:
        raise UsageError(
            "name variants, or --missing", hint=f"envgen sweep {service} --variants plain,NAME"
        )
    _require_agreement(session, service, len(forms), yes)
    measured = None if no_bench else plan
    done = sweep.sweep(asked, service, forms, measured, quick=quick, fresh=fresh)
    (outcome, summary), path = done
    lines = [*shown(summary["rows"]), f"{outcome}; the record is {path}"]
    lines.append(f"the matrix is {results.write_matrix(session, service)}")
    page, _ = results.write_page(session, service, None)
    lines.append(f"{page.absolute().as_uri()} shows it")
    document = {"outcome": outcome, "record": str(path), **summary}
    return answer(document, lines, ExitCode.OK if outcome == PASSED else ExitCode.FINDINGS)


def _show_matrix(session: Session, service: str, rows: Sequence[matrix.MatrixRow]) -> int:
    """Print the matrix as it is."""
    cells = [row.cells() for row in rows]
    lines = table([matrix.HEAD, *cells], right=range(4, 7))
    targets = []
    for target in results.targets(session.profile(), service):
        targets.append(target.text)
        lines.append(f"target {target.text}")
    document = {
        "rows": [row.plain() for row in rows],
        "targets": targets,
    }
    return answer(document, map(visible, lines))


def _require_agreement(session: Session, service: str, count: int, yes: bool) -> None:
    """RefusedError where the service runs, and may not be stopped."""
    running = VariantSwitch(session, service).before
    if running is None or yes:
        return
    runs = f"{service} runs ({running.profile().variant or 'plain'})"
    if not ask(f"{runs}. Stop it, try {count} variants, and start it again?"):
        raise RefusedError(f"{runs}, and a sweep stops it for a while", hint="add --yes")


def shown(rows: Sequence[JsonObject], indent: str = "") -> Iterator[str]:
    """The measured rows as a table."""
    lines = sweep.lines_of(rows)
    figures = range(3, len(lines[0]) - 1)
    yield from map(visible, table(lines, right=figures, indent=indent))
