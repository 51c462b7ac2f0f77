"""`envgen nodes push`: the other machines get what the first one has."""

from __future__ import annotations

from dataclasses import asdict

import click

from envgen.app import push as use_case
from envgen.app.session import Session
from envgen.cli.common import json_option, print_json, project_options
from envgen.errors import ExitCode
from envgen.text import progress, size


@click.command()
@click.argument("service", required=False)
@project_options
@click.option("--image", is_flag=True, help="The image.")
@click.option("--sources", is_flag=True, help="The mounted checkouts.")
@click.option("--model", is_flag=True, help="The weights.")
@click.option("--caches", is_flag=True, help="The kernels that were compiled at run time.")
@click.option("--force", is_flag=True, help="Also over files of a checkout that were changed on the other machine.")
@click.option("-n", "--dry-run", is_flag=True, help="Show what would be sent; change nothing.")
@json_option
def push(
    session: Session,
    service: str | None,
    image: bool,
    sources: bool,
    model: bool,
    caches: bool,
    force: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Copy what the first machine of SERVICE has to its other machines: image, checkouts, weights, compiled kernels.

    All of it, or what is named. Nothing is built or downloaded a second time; what is the same is left alone. What was
    cut off is never taken for whole, and the same command goes on.

    Of the image only the layers that a machine lacks are sent, over the connection of its Docker context. Files travel
    from machine to machine over the cable, unencrypted, and are compared by their hashes; they need the image on both.
    Files of a checkout that the first machine does not have are removed on the others.

    Exit code 3 where something could not be sent, 6 where it was refused: files of a checkout changed there, no space,
    services that use a cache.

    \b
    Examples:
      envgen nodes push --dry-run
      envgen nodes push
      envgen nodes push --image
    """
    chosen = {"image": image, "sources": sources, "model": model, "caches": caches}
    kinds = [kind for kind, wanted in chosen.items() if wanted] or use_case.KINDS
    found = use_case.push(session, service, progress, kinds=kinds, dry_run=dry_run, force=force)
    if as_json:
        print_json({"pushed": [asdict(one) for one in found]})
    else:
        for one in found:
            sent = f", {size(one.bytes)} in {one.seconds:.1f} s" if one.bytes else ""
            detail = f": {one.detail}{sent}" if one.detail else ""
            click.echo(f"  {one.state:7}  {one.node}: {one.what}{detail}")
            if one.hint:
                click.echo(f"           hint: {one.hint}")
    states = {one.state for one in found}
    return ExitCode.ENGINE if "failed" in states else ExitCode.REFUSED if "refused" in states else ExitCode.OK
