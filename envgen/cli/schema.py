"""``envgen schema``: the JSON Schema of the project file, or its reference page."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option("--docs", is_flag=True, help="The reference page (docs/profile.md) instead of the schema.")
@click.option("--write", "target", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Write it into FILE instead of printing it.")  # fmt: skip
def command(docs: bool, target: Path | None) -> None:
    """Print the JSON Schema of the project file.

    \b
    Example:
      envgen schema --write envgen.schema.json
    """
    from envgen.profile import reference, schema

    text = reference.text() if docs else schema.text()
    if target is None:
        click.echo(text, nl=False)
        return
    from envgen.cli.init import write_file

    write_file(target, text, overwrite=True)
    click.echo(f"wrote {target}", err=True)
