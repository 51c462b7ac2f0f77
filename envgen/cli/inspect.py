"""`envgen inspect`: what an image says about its inputs."""

from __future__ import annotations

import click

from envgen.cli.common import Session, json_option, print_json, progress, project_options
from envgen.errors import ExitCode


@click.command()
@click.argument("image", required=False)
@project_options
@json_option
def command(session: Session, image: str | None, as_json: bool) -> int:
    """Print every input of IMAGE (default: the image of the profile) as the image itself tells it.

    \b
    Example:
      envgen inspect
      envgen inspect mxfp4:prod --json
    """
    from envgen.engine.docker import connect
    from envgen.lock.manifest import read

    found = read(connect(), image or session.profile().image_name)
    if as_json:
        print_json(
            {
                "image": found.image,
                "id": found.id,
                "labels": dict(found.labels),
                "inputs": dict(found.inputs),
                "open": list(found.open),
                "reported": list(found.reported),
            }
        )
        return ExitCode.OK
    click.echo(f"{found.image} ({found.id.removeprefix('sha256:')[:12]})")
    for name, value in sorted(found.labels.items()):
        click.echo(f"  {name}  {value or '(none)'}")
    for name, value in sorted(found.inputs.items()):
        if not name.endswith(" sha256"):
            click.echo(f"  {name}  {value}")
    for text in found.open:
        progress(f"not locked: {text}")
    for text in found.reported:
        progress(f"taken from a report, never resolved: {text}")
    if not found.inputs:
        progress("it was built without a lock, so it tells no inputs")
    return ExitCode.OK
