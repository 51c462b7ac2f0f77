"""`envgen inspect`: the inputs of an image."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import click

from envgen.app.session import Session
from envgen.cli.common import answer, reporting
from envgen.engine.client import connect
from envgen.lock.image import Manifest, debian_packages, read
from envgen.render.inputs import LABEL as INPUTS_LABEL
from envgen.render.inputs import read_label
from envgen.text import counted, progress, short_id


@click.command()
@click.argument("image", required=False)
@reporting
def command(session: Session, image: str | None) -> int:
    """Print the inputs that are recorded in IMAGE (default: the image of the profile).

    \b
    Example:
      envgen inspect mxfp4:prod
    """
    engine = connect()
    manifest = read(engine, image or session.profile().image_name)
    debian = debian_packages(engine, manifest.id)
    return answer({**asdict(manifest), "debian": debian}, _recorded(manifest, debian))


def _recorded(manifest: Manifest, debian: list[str]) -> Iterator[str]:
    yield f"{manifest.image} ({short_id(manifest.id)})"
    labels = {name: value for name, value in manifest.labels.items() if name != INPUTS_LABEL}
    shown = {**read_label(manifest.labels.get(INPUTS_LABEL, "")), **labels, **manifest.inputs}
    for name, value in sorted(shown.items()):
        if not name.endswith(" sha256"):
            yield f"  {name}  {value or '(none)'}"
    if debian:
        yield f"  {counted(len(debian), 'Debian package')}  (--json lists them with their versions)"
    for text in manifest.open:
        progress(f"not locked: {text}")
    if not manifest.inputs:
        progress("built without a lock: exact versions are not recorded")
