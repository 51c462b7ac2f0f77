"""`envgen run`, `pull`: what needs the image, not a running service."""

from __future__ import annotations

import click

from envgen.app import services
from envgen.app.build import pull as pull_base
from envgen.app.session import Session
from envgen.cli.common import json_option, print_json, project_options, variant_option
from envgen.cli.services.options import command_of, inside_options


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("argv", metavar="[SERVICE] [--] COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@project_options
@variant_option
@inside_options
def run(session: Session, argv: tuple[str, ...], variant: str, inside: list[str], tty: bool) -> int:
    """Run a command in a new container with the image, mounts and environment of a service; it is removed afterwards.

    SERVICE is the first word where the profile has a service of that name; else `dev`, or the first of the profile.
    Ports are not published. The exit code is the command's own; Ctrl-C goes to the command.

    \b
    Example:
      envgen run -- python3 -c 'import vllm; print(vllm.__file__)'
      envgen run -e LEVEL=2 serve env
      envgen run dev bash
    """
    session.variant = variant
    profile = session.profile()
    service, words = (argv[0], argv[1:]) if argv[0] in profile.services else (services.main_service(profile), argv)
    return services.one_off(session, service, command_of(words), inside, tty=tty)


@click.command()
@project_options
@json_option
def pull(session: Session, as_json: bool) -> int:
    """Pull the base image of the profile: the one that envgen.lock names, else the newest of its tag.

    The images of services are built, not pulled: `envgen build`.

    \b
    Example:
      envgen pull --profile prod
    """
    name, image_id = pull_base(session)
    if as_json:
        print_json({"image": name, "id": image_id})
    else:
        click.echo(f"pulled {name} ({image_id.removeprefix('sha256:')[:12]})")
    return 0
