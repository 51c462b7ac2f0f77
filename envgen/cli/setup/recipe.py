"""`envgen recipe`: models as data."""

from __future__ import annotations

import click

from envgen.app import recipes as app
from envgen.app.session import Session
from envgen.cli import FullGroup
from envgen.cli.common import (
    answer,
    ask,
    flag,
    json_option,
    option,
    print_json,
    reporting,
    wants_json,
)
from envgen.errors import ExitCode, RefusedError, UsageError
from envgen.recipes.shipped import shipped
from envgen.text import progress, table, visible


@click.group(cls=FullGroup)
def command() -> None:
    """List model recipes, or add one to the project as a profile.

    \b
    Examples:
      envgen recipe list
      envgen recipe add qwen3.6-35b-a3b
    """


@command.command("list")
@json_option
def list_() -> int:
    """List the recipes that ship with envgen."""
    models = [
        {key: getattr(one, key) for key in ("name", "repo", "nodes", "weights")}
        for one in shipped().values()
    ]
    shown = [
        ["recipe", "model", "machines", "weights"],
        *(list(map(str, one.values())) for one in models),
    ]
    return answer({"recipes": models}, table(shown))


@command.command("add")
@click.argument("name")
@option(
    "--model-variant, variant",
    "V",
    "The variant of a vllm-project recipe (default: the one for a DGX Spark).",
    default="",
)
@option("--name, called", "PROFILE", "Name of the profile (default: the recipe's).", default="")
@option("--extends", "PROFILE", "The profile to extend (default: prod).", default="")
@flag("--image", "Take the recipe's image, and the vLLM in it, as the base.")
@flag("--yes", "Write without asking.")
@flag("-n, --dry-run", "Show what would change; write nothing.")
@reporting
def add(
    session: Session,
    name: str,
    variant: str,
    called: str,
    extends: str,
    image: bool,
    yes: bool,
    dry_run: bool,
) -> int:
    """Add a recipe to envgen.yaml as a profile.

    NAME is a shipped recipe, or a file: a recipe, a Compose file, or a script with one `docker run`
    or `vllm serve` line; - reads it from the terminal. Shows the change and asks before it writes. No part of a
    recipe is executed.
    What the profile lacks is listed, with the reason. Comments and order of envgen.yaml are kept.
    With --json, --yes is needed to write.

    \b
    Examples:
      envgen recipe add qwen3.6-35b-a3b
      git clone https://github.com/vllm-project/recipes
      envgen recipe add recipes/models/Qwen/Qwen3.6-27B.yaml --model-variant fp8
    """
    if yes and dry_run:
        raise UsageError("--yes and --dry-run exclude each other")
    change = app.add(session, app.find(name, variant), called, extends, image=image)
    if wants_json():
        if yes:
            change.write()
        print_json(
            {
                "profile": change.profile,
                "left": list(change.left),
                "diff": change.diff,
                "written": yes,
            }
        )
        return ExitCode.OK
    click.echo(visible(change.diff, lines=True))
    for setting in change.left:
        progress(f"not placed: {setting}")
    if dry_run:
        return ExitCode.OK
    if not (yes or ask(f"write {change.file.name}?")):
        raise RefusedError(
            f"{change.file.name} is unchanged: not confirmed",
            hint="add --yes to write without asking",
        )
    change.write()
    progress(f"wrote {change.file.name}; next: envgen predict -p {change.profile}")
    return ExitCode.OK
