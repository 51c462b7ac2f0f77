"""`envgen inspect`: what an image says about its inputs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from envgen.app.session import Session
from envgen.cli.common import json_option, print_json, project_options
from envgen.cli.images.sbom import target_of, write_sbom
from envgen.engine.docker import connect
from envgen.errors import ExitCode, UsageError
from envgen.lock.manifest import read
from envgen.text import progress, short_id


@click.command()
@click.argument("image", required=False)
@project_options
@click.option("--sbom", metavar="FILE", help="Write what is in it as an SPDX 2.3 document instead (- for stdout).")
@json_option
def command(session: Session, image: str | None, sbom: str | None, as_json: bool) -> int:
    """Print every input of IMAGE (default: the image of the profile) as recorded in the image.

    \b
    Example:
      envgen inspect
      envgen inspect mxfp4:prod --json
      envgen inspect mxfp4:prod --sbom mxfp4.spdx.json
    """
    if sbom is not None:
        if as_json or not sbom:
            raise UsageError("--sbom wants a file, and prints no other document", hint="--sbom - writes it to stdout")
        target = target_of(sbom, Path())
        write_sbom(connect(), image or session.profile().image_name, target)
        return ExitCode.OK
    found = read(connect(), image or session.profile().image_name)
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
