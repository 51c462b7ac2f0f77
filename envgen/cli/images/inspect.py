"""`envgen inspect`: what an image says about its inputs."""

from __future__ import annotations

from dataclasses import asdict

import click

from envgen.app.session import Session
from envgen.cli.common import json_option, print_json, project_options
from envgen.engine.client import connect
from envgen.errors import ExitCode, NotFoundError, UsageError
from envgen.lock.image import read, take, write_sbom
from envgen.text import progress, short_id


@click.command()
@click.argument("image", required=False)
@project_options
@click.option("--sbom", is_flag=True, help="Print what is installed in it as an SPDX 2.3 document instead.")
@json_option
def command(session: Session, image: str | None, sbom: bool, as_json: bool) -> int:
    """Print every input of IMAGE (default: the image of the profile) as recorded in the image.

    \b
    Example:
      envgen inspect
      envgen inspect mxfp4:prod --json
      envgen inspect mxfp4:prod --sbom > mxfp4.spdx.json
    """
    if sbom and as_json:
        raise UsageError("--sbom and --json would both print to stdout", hint="give one of the two")
    engine = connect()
    found = read(engine, image or session.profile().image_name)
    if sbom:
        made = engine.image(found.id)
        if made is None:
            raise NotFoundError(f"the image {found.image} is gone")
        click.echo(write_sbom(found, made, take(engine, found.id)).decode(), nl=False)
        return ExitCode.OK
    if as_json:
        document = asdict(found)
        print_json({key: document[key] for key in ("image", "id", "labels", "inputs", "open")})
        return ExitCode.OK
    click.echo(f"{found.image} ({short_id(found.id)})")
    for name, value in sorted(found.labels.items()):
        click.echo(f"  {name}  {value or '(none)'}")
    for name, value in sorted(found.inputs.items()):
        if not name.endswith(" sha256"):
            click.echo(f"  {name}  {value}")
    for text in found.open:
        progress(f"not locked: {text}")
    if not found.inputs:
        progress("it was built without a lock, so it records no inputs")
    return ExitCode.OK
