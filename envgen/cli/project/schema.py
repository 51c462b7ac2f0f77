"""``envgen schema``: the JSON Schema of the project file."""

from __future__ import annotations

from pathlib import Path

import click

from envgen.cli.project.init import write_file
from envgen.profile import schema


@click.command()
@click.option("--write", "target", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Write FILE instead of printing.")  # fmt: skip
def command(target: Path | None) -> None:
    """Print the JSON Schema of the project file.

    \b
    Example:
      envgen schema --write envgen.schema.json
    """
    text = schema.text()
    if target is None:
        click.echo(text, nl=False)
        return
    write_file(target, text, overwrite=True)
    click.echo(f"wrote {target}", err=True)
