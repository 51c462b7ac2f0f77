"""`envgen verify`: build twice without cache, and compare what came out."""

from __future__ import annotations

from dataclasses import asdict

import click

from envgen.app.session import Session
from envgen.app.verify import Verified, verify
from envgen.cli.common import json_option, print_json, project_options
from envgen.errors import ExitCode
from envgen.text import progress

SHOWN = 40


@click.command()
@project_options
@click.option("--max-jobs", type=click.IntRange(1, 9999), metavar="N", help="Compilers at once.")
@json_option
def command(session: Session, max_jobs: int | None, as_json: bool) -> int:
    """Build the image of a profile twice without cache, from two folders, and compare the images.

    Content is compared: files, modes, owners, links, bytes and configuration; times don't count. Where it differs, each
    difference is named (exit code 1). A profile with `reproducible: true` must also give the same image ID. Images of
    this command are removed again; the profile's own image stays as it is.

    \b
    Example:
      envgen verify -p prod
    """
    verified = verify(session, max_jobs)
    _show(verified, as_json)
    return ExitCode.FINDINGS if verified.found else ExitCode.OK


def _show(verified: Verified, as_json: bool) -> None:
    ids, found = verified.ids, verified.found
    same = ids[0] == ids[1]
    content = "same content" if verified.same_content else "different content"
    if as_json:
        times = [round(each, 1) for each in verified.seconds]
        document = {"same_content": verified.same_content, "same_id": same, "image_ids": list(ids), "seconds": times}
        print_json({**document, "differences": list(map(asdict, found))})
        return
    click.echo(content)
    click.echo(f"same ID: {ids[0]}" if same else f"different IDs: {ids[0]} and {ids[1]}")
    for difference in found[:SHOWN]:
        click.echo(f"  {difference}")
    if len(found) > SHOWN:
        progress(f"{len(found) - SHOWN} more; --json lists all")
    if any(d.path.rpartition("/")[2].startswith(".wh.") for d in found):
        progress("hint: a step removed files of a lower layer; the time of that cannot be set (docs/reproducible.md)")
