"""`envgen doctor`: prove which code a container imports, and what is around it."""

from __future__ import annotations

import sys
from collections.abc import Collection

import click

from envgen.cli.common import Session, json_option, print_json, project_options


@click.command()
@click.argument("service", required=False)
@project_options
@click.option("--run", "throw_away", is_flag=True, help="With nothing running, look inside a throw-away container.")
@click.option("--strict", is_flag=True, help="Exit 1 for warnings too.")
@json_option
def command(session: Session, service: str | None, throw_away: bool, strict: bool, as_json: bool) -> int:
    """Check host, image and container, and prove which flashinfer and vllm are imported.

    One look inside tells, for every source, what -c, -m and its console script import from each folder. Exit code 0: no
    errors; 1: errors (with --strict: or warnings). SERVICE is the one to look at; default: dev, else any that runs.

    \b
    Example:
      envgen doctor
      envgen doctor serve --strict
      envgen doctor -p prod --run --json
    """
    from envgen.cli.variant import of_running
    from envgen.doctor.gather import Wish, gather
    from envgen.engine.docker import connect

    _known_service(session.profile().services, service)
    session = of_running(session, service)
    project, profile = session.loaded().project, session.profile()
    wish = Wish(profile, project.root, service, throw_away, project.file.name)
    context, extra = gather(wish, connect)

    from envgen.doctor import report, run
    from envgen.doctor.model import Severity
    from envgen.errors import ExitCode

    found = run.examine(context, extra)
    if as_json:
        print_json(report.as_data(found))
    else:
        click.echo(report.as_text(found, colour=sys.stdout.isatty()))
    limit = Severity.WARNING if strict else Severity.ERROR
    return ExitCode.FINDINGS if found.worst >= limit else ExitCode.OK


def _known_service(known: Collection[str], name: str | None) -> None:
    if name is not None and name not in known:
        import difflib

        from envgen.errors import UsageError

        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known) or 'none'}"
        raise UsageError(f"the profile has no service {name!r}", hint=hint)
