"""`envgen run`: a command in a new container."""

from __future__ import annotations

import click

from envgen.app import lifecycle
from envgen.app.session import Session
from envgen.app.up import main_service
from envgen.cli.common import project_options, variant_option
from envgen.cli.run.common import command_of, inside_options
from envgen.deployment import LiveService


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument(
    "argv", metavar="[SERVICE] [--] COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED
)
@project_options
@variant_option
@inside_options
def command(session: Session, argv: tuple[str, ...], inside: list[str], tty: bool) -> int:
    """Run a command in a new container of SERVICE, and remove the container afterwards.

    The container has the image, mounts and environment of SERVICE (default: dev, or the first one),
    but publishes no ports. The exit code is that of the command.

    \b
    Examples:
      envgen run -- python3 -c 'import vllm; print(vllm.__file__)'
      envgen run -e LEVEL=2 serve env
    """
    profile = session.profile()
    if argv[0] in profile.services:
        service = argv[0]
        words = argv[1:]
    else:
        service = main_service(profile)
        words = argv
    live = LiveService(session.deployment(), service)
    return lifecycle.one_off(live, command_of(words), inside, tty=tty)
