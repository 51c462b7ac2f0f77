"""``envgen use``: the profile of commands that name none."""

from __future__ import annotations

import os
from pathlib import Path

import click

from envgen.app.use import write_default
from envgen.cli.common import answer, json_option
from envgen.errors import ExitCode
from envgen.profile.load import called, load_project, select
from envgen.profile.tree import label_of
from envgen.text import progress

VARIABLE = "ENVGEN_PROFILE"


@click.command()
@click.argument("profile", metavar="[PROFILE]", required=False)
@click.option("-f", "--file", type=click.Path(path_type=Path), envvar="ENVGEN_FILE", metavar="FILE",
              help="The project file (default: envgen.yaml, searched upward).")  # fmt: skip
@json_option
def command(profile: str | None, file: Path | None) -> int:
    """Choose the profile of all following commands, on this machine.

    Writes `default_profile` into envgen.local.yaml, which git ignores. Without PROFILE, lists the profiles and marks
    the one in use. -p and the variable ENVGEN_PROFILE override it.

    \b
    Examples:
      envgen use prod
      envgen use
    """
    # What the local file says now doesn't matter: it may name a profile that is gone.
    shared = load_project(file=file, local=profile is None).project
    given = called(os.environ.get(VARIABLE, ""))
    if profile is not None:
        profile = select(shared, called(profile)).name
        path = write_default(shared.root, profile)
        progress(f"{label_of(path)}: default_profile: {profile}")
        if given and given != profile:
            progress(f"warning: {VARIABLE}={given} is set and overrides it: unset {VARIABLE}")
    used = given or profile or shared.default_profile
    rows = [
        {"name": name, "description": one.description, "mode": one.mode.value, "used": name == used}
        for name, one in shared.profiles.items()
    ]
    width = max(len(name) for name in shared.profiles)
    lines = [f"{'*' if row['used'] else ' '} {row['name']:{width}}  {row['description']}".rstrip() for row in rows]
    return answer({"profiles": rows, "profile": used}, lines if profile is None else (), ExitCode.OK)
