"""`envgen verify`: build twice and compare."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import click

from envgen.app.session import Session
from envgen.app.verify import Verified, verify
from envgen.cli.common import answer, reporting
from envgen.errors import ExitCode
from envgen.text import progress

SHOWN_DIFFERENCES = 40


@click.command()
@reporting
def command(session: Session) -> int:
    """Build the image of a profile twice without cache, in two folders, and compare the two images.

    Compares file content, modes, owners, links and the image configuration, but not times. Lists
    each difference and exits with 1 if there is one. Both images are removed; the profile's own
    image stays as it is.

    \b
    Example:
      envgen verify -p prod
    """
    verified = verify(session)
    ids, differences = verified.ids, verified.found
    document = {
        "same_content": not differences,
        "same_id": ids[0] == ids[1],
        "image_ids": list(ids),
        "seconds": [round(seconds, 1) for seconds in verified.seconds],
        "differences": list(map(asdict, differences)),
    }
    return answer(document, _verdict(verified), ExitCode.FINDINGS if differences else ExitCode.OK)


def _verdict(verified: Verified) -> Iterator[str]:
    ids, differences = verified.ids, verified.found
    yield "different content" if differences else "same content"
    yield f"same ID: {ids[0]}" if ids[0] == ids[1] else f"different IDs: {ids[0]} and {ids[1]}"
    yield from (f"  {difference}" for difference in differences[:SHOWN_DIFFERENCES])
    if len(differences) > SHOWN_DIFFERENCES:
        progress(f"{len(differences) - SHOWN_DIFFERENCES} more; --json lists all")
