"""`envgen exec`: a command in a running container."""

from __future__ import annotations

import time

import click

from envgen.app.cluster.machines import machine_of
from envgen.app.provision import record_compiled
from envgen.app.session import Session
from envgen.cli.common import project_options
from envgen.cli.run.common import command_of, inside_options, node_option
from envgen.deployment import LiveService
from envgen.engine.compose import attach
from envgen.render.environment import with_start_up


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("service")
@click.argument("argv", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@project_options
@inside_options
@node_option
def command(
    session: Session,
    service: str,
    argv: tuple[str, ...],
    inside: list[str],
    tty: bool,
    node: str | None,
) -> int:
    """Run a command in the running container of SERVICE.

    Options of envgen come before SERVICE. The exit code is that of the command. A service with
    `cluster` runs it on the first machine, unless --node names another.

    \b
    Examples:
      envgen exec dev python3 -c 'import flashinfer; print(flashinfer.__file__)'
      envgen exec -u 65534 -w /tmp -e LEVEL=2 dev env
    """
    words = with_start_up(command_of(argv))
    live = machine_of(LiveService(session.deployment(), service), node)
    container = live.running()
    since = time.time()
    code = attach(live.deployment.endpoint, container.id, words, options=inside, tty=tty)
    record_compiled(live.deployment, since)
    return code
