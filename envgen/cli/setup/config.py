"""``envgen config``: the values of a profile, and where each comes from."""

from __future__ import annotations

import json

import click
import yaml

from envgen.app.session import Session
from envgen.cli.common import (
    flag,
    print_json,
    reporting,
    variant_option,
    wants_json,
    warn_of_unused,
)
from envgen.errors import as_data
from envgen.profile.compose_file import own_file
from envgen.profile.schema import plain, values


@click.command()
@reporting
@flag("--explain, with_origin", "Print one value per line, and where it comes from.")
@variant_option
def command(session: Session, with_origin: bool) -> None:
    """Show the values of a profile after all layers are merged.

    A warning names each setting without effect. `render`, `build` and `up` print them, too.

    \b
    Examples:
      envgen config --explain
      envgen config -p prod --variant cutlass --explain
    """
    loaded = session.loaded()
    profile = session.profile()
    listing = values(profile, loaded.trees[profile.name])
    if wants_json():
        origins = [vars(one) | {"place": one.place and str(one.place)} for one in listing]
        print_json(
            {
                "project": loaded.project.name,
                "file": str(loaded.project.file),
                "profile": profile.name,
                "variant": profile.variant,
                "values": plain(profile),
                "warnings": [as_data(one) for one in session.warnings()],
                **({"origins": origins} if with_origin else {}),
            }
        )
        return
    warn_of_unused(session)
    own_file(session.profile(), session.loaded().project.root)
    if with_origin:
        for value in listing:
            origin = str(value.place) if value.place else "default"
            click.echo(f"{value.key} = {json.dumps(value.value, ensure_ascii=False)}  # {origin}")
    else:
        text = yaml.safe_dump(plain(profile), sort_keys=False, allow_unicode=True, width=10**6)
        laid_over = f", variant {profile.variant}" if profile.variant else ""
        click.echo(
            f"# profile {profile.name} of {loaded.project.name}{laid_over}\n{text}", nl=False
        )
