"""`envgen pull`: the base image."""

from __future__ import annotations

import click

from envgen.app.pull import pull as pull_base
from envgen.app.session import Session
from envgen.cli.common import answer, reporting
from envgen.text import short_id


@click.command()
@reporting
def command(session: Session) -> int:
    """Pull the base image of the profile: the digest in envgen.lock or, without a lock, the newest image of the tag.

    `envgen build` builds the images of services on top of it.

    \b
    Example:
      envgen pull --profile prod
    """
    name, image_id = pull_base(session)
    return answer({"image": name, "id": image_id}, [f"pulled {name} ({short_id(image_id)})"])
