"""``envgen schema``: the JSON Schema of the project file."""

from __future__ import annotations

import click

from envgen.profile import schema


@click.command()
def command() -> None:
    """Print the JSON Schema of the project file.

    \b
    Example:
      envgen schema > envgen.schema.json
    """
    click.echo(schema.text(), nl=False)
