"""`envgen bisect`: which change between two locks made a server fail."""

from __future__ import annotations

import click

from envgen.app import build as builds
from envgen.app.session import Session
from envgen.app.up import main_service
from envgen.app.upgrade.bisect import (
    ANSWERS,
    COMMAND,
    SPEED,
    START,
    Bisection,
    changelog,
    side_of,
)
from envgen.cli.build.build import show
from envgen.cli.common import answer, ask, flag, option, reporting
from envgen.errors import RefusedError, UsageError
from envgen.text import progress


@click.command()
@click.argument("good")
@click.argument("bad")
@click.argument("argv", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
@reporting
@option(
    "--test",
    "TEST",
    "start, answers, or a speed such as 'decode < -5%'.",
    default=START,
    show_default=True,
)
@option("-s, --service", "NAME", "The service (default: dev, or the first).")
@flag("-y, --yes", "Stop the service that runs without asking.")
def command(
    session: Session,
    good: str,
    bad: str,
    argv: tuple[str, ...],
    test: str,
    service: str | None,
    yes: bool,
) -> int:
    """Find the change that made a server fail, answer differently or slow down.

    GOOD and BAD are lock files, SOURCE==VERSION, or git revisions that have an envgen.lock. What
    differs between them is halved: a few builds, each of a few packages, and a start each. What the
    resolver moves together stays together. With COMMAND, a step is good if that exits with 0; it
    runs on this machine, when the server is ready.

    Both ends are tried first. After an interruption the same command goes on, and `envgen up`
    starts what ran before, which also starts again at the end. No file of the project changes.

    \b
    Examples:
      envgen bisect HEAD~3 HEAD
      envgen bisect old.lock envgen.lock --test answers
      envgen bisect vllm==0.32.0 vllm==0.33.0 --test 'decode < -5%'
      envgen bisect HEAD~1 HEAD -- ./ask.sh
    """
    if test not in (START, ANSWERS) and not SPEED.fullmatch(test):
        raise UsageError(f"--test {test!r} is none", hint="start, answers, or 'decode < -5%'")
    if argv and test != START:
        raise UsageError("--test and a COMMAND exclude each other")
    name = service or main_service(session.profile())
    sides = side_of(session, good), side_of(session, bad)

    def build(made: Session) -> None:
        show(builds.build(made.deployment(), show=False), to_stderr=True)

    found = Bisection(session, name, sides, COMMAND if argv else test, argv, build)
    for unit, (before, after) in found.differing.items():
        progress(f"  {unit}  {before or '-'}  →  {after or '-'}")
    if not yes and not ask(f"{name} is stopped, and started once a step. Do it?"):
        raise RefusedError("nothing was changed", hint="add --yes")
    rows = []
    lines = []
    pins = []
    for one in sorted(found.run()):
        before, after = found.differing[one]
        address = changelog(session, one, after)
        rows.append({"name": one, "good": before, "bad": after, "changelog": address})
        lines.append(f"{one}  {before or '-'}  →  {after or '-'}")
        lines += [f"  its changes: {address}"] if address else []
        pins += [f'"{one}=={before}"'] if " " not in one else []
    lines += [f"  until it is fixed: pip: {{deps: [{', '.join(pins)}]}}"] if pins else []
    document = {"changes": rows, "tried": len(found.rows)}
    return answer(document, [f"the first bad change, after {len(found.rows)} steps:", *lines])
