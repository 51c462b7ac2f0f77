"""`envgen logs`: the output of services."""

from __future__ import annotations

import click

from envgen.app.cluster.machines import machines_of
from envgen.app.session import Session
from envgen.cli.common import (
    Count,
    flag,
    option,
    project_options_without_f,
    services_argument,
    show_logs,
)
from envgen.cli.run.common import described, node_option
from envgen.errors import ExitCode, NotFoundError
from envgen.text import progress


@click.command()
@services_argument
@project_options_without_f
@flag("-f, --follow", "Keep printing new output, until Ctrl-C.")
@option("-n, --tail", "LINES", "Print only the last LINES lines.", type=Count(0))
@option("--since", "TIME", "Print only lines since TIME: 10m, 2h, 2026-01-02T03:04:05Z.")
@flag("-t, --timestamps", "Print a timestamp before each line.")
@node_option
def command(
    session: Session,
    names: tuple[str, ...],
    follow: bool,
    tail: int | None,
    since: str | None,
    timestamps: bool,
    node: str | None,
) -> int:
    """Print the output of each SERVICE (default: all of the profile).

    For this command, -f is short for --follow, not for --file.

    \b
    Examples:
      envgen logs -t --since 10m
      envgen logs -f serve --node spark-2
    """
    asked = machines_of(session.deployment(), names, node)
    for error in asked.lost.values():
        progress(str(error))
    machines = [
        deployment for deployment in asked.reached if deployment.containers(names, all=True)
    ]
    if not machines and not asked.lost:
        profile = session.profile()
        raise NotFoundError(
            f"no containers for {described(profile, names)}",
            hint=profile.hint("up", *names),
        )
    alone = len(names) == 1
    given = {
        "--no-log-prefix": alone,
        "--timestamps": timestamps or not alone,
        "--follow": follow,
        f"--tail={tail}": tail is not None,
        f"--since={since}": since is not None,
    }
    words = ["--profile", "*", "logs", *(word for word, wanted in given.items() if wanted)]
    code = show_logs(
        {deployment.node: deployment.by_name for deployment in machines}, *words, *names
    )
    return code or (ExitCode.ENGINE if asked.lost else ExitCode.OK)
