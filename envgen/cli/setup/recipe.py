"""`envgen recipe`: models as data."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import click

from envgen.app import recipes as app
from envgen.app.session import Session
from envgen.cli import FullGroup
from envgen.cli.common import answer, ask, json_option, print_json, reporting, wants_json
from envgen.errors import ExitCode, RefusedError, UsageError
from envgen.profile.flags import words_of
from envgen.recipes.read import Recipe, name_of
from envgen.recipes.shipped import shipped
from envgen.recipes.write import memory_of
from envgen.text import progress, table, visible

_from = click.option("--from", "place", metavar="PLACE", default="", help="A folder, or the URL of a git repository.")
_ref = click.option(
    "--ref", metavar="REF", default="", help="Branch, tag or commit of that repository (default: HEAD)."
)
_variant = click.option("--model-variant", "variant", metavar="V", default="",
                        help="The variant of a vllm-project recipe (default: the one for a DGX Spark).")  # fmt: skip


@click.group(cls=FullGroup)
def command() -> None:
    """List model recipes, show one, or add one to the project as a profile.

    \b
    Examples:
      envgen recipe list
      envgen recipe add qwen3.6-35b-a3b
    """


@command.command("list")
@_from
@_ref
@json_option
def list_(place: str, ref: str) -> int:
    """List the recipes that ship with envgen, or those of a folder or repository.

    \b
    Example:
      envgen recipe list --from https://github.com/vllm-project/recipes
    """
    if place:
        found = app.collection(place, ref)
        rows = [{"name": name_of(path), "path": path} for path in found.paths]
        document = {"source": found.source, "commit": found.commit or None, "recipes": rows}
        return answer(document, (visible(path) for path in found.paths))
    if ref:
        raise UsageError("--ref goes with --from")
    known = shipped()
    models = [{key: getattr(one, key) for key in ("name", "repo", "nodes", "weights")} for one in known.values()]
    shown = [["recipe", "model", "machines", "weights"], *(list(map(str, one.values())) for one in models)]
    return answer({"source": "envgen", "commit": None, "recipes": models}, table(shown))


@command.command("show")
@click.argument("name")
@_from
@_ref
@_variant
@json_option
def show(name: str, place: str, ref: str, variant: str) -> int:
    """Show a recipe as envgen reads it.

    NAME is a shipped recipe, a file or, with --from, a recipe in PLACE. For the model of a shipped recipe, an estimate
    of its memory on one GB10 follows. `envgen predict` asks vLLM itself.

    \b
    Example:
      envgen recipe show nemotron-3-super-120b
    """
    recipe = app.find(name, place, ref, variant)
    memory = app.estimate_of(recipe)
    document = {**asdict(recipe), "needs_memory": memory_of(recipe), "memory": memory and memory.document()}
    return answer(document, _shown(recipe, memory.lines() if memory else []))


def _shown(recipe: Recipe, memory: Sequence[str]) -> Iterator[str]:
    yield f"{visible(recipe.name)}: {recipe.repo}"
    facts = {
        "revision": recipe.revision,
        "vLLM": recipe.release and f"{recipe.release} or newer",
        "image": recipe.image,
        "machines": str(recipe.nodes),
        "weights": recipe.weights,
        "needs_memory": memory_of(recipe) or "",
        "source": recipe.source,
        "commit": recipe.commit,
        "date": recipe.date,
        "run by others": recipe.ran,
    }
    yield from (f"  {key}: {visible(value)}" for key, value in facts.items() if value)
    yield from (f"  memory: {line}" for line in memory)
    for key, value in recipe.args.items():
        typed = tuple(map(str, value)) if isinstance(value, list) else {"true": True, "false": False}.get(str(value))
        shown = json.dumps(value) if isinstance(value, dict) else str(value) if typed is None else typed
        yield f"  {visible(' '.join(words_of(key, shown, of_vllm=True)))}"
    yield from (f"  {key}={visible(value)}" for key, value in recipe.env.items())
    yield from (f"  not placed: {visible(one)}" for one in recipe.left)


@command.command("add")
@click.argument("name")
@_from
@_ref
@_variant
@click.option("--name", "called", metavar="PROFILE", default="", help="Name of the profile (default: the recipe's).")
@click.option("--extends", metavar="PROFILE", default="", help="The profile to extend (default: prod).")
@click.option("--image", is_flag=True, help="Take the recipe's image, and the vLLM in it, as the base.")
@click.option("--yes", is_flag=True, help="Write without asking.")
@click.option("-n", "--dry-run", is_flag=True, help="Show what would change; write nothing.")
@reporting
def add(
    session: Session, name: str, place: str, ref: str, variant: str, called: str, extends: str,
    image: bool, yes: bool, dry_run: bool,
) -> int:  # fmt: skip
    """Add a recipe to envgen.yaml as a profile.

    NAME is a shipped recipe, a file or, with --from, a recipe in PLACE. Shows the change and asks before it writes. No
    part of a recipe is executed. What the profile lacks is listed, with the reason. Comments and order of envgen.yaml
    are kept. With --json, --yes is needed to write.

    \b
    Examples:
      envgen recipe add qwen3.6-35b-a3b
      envgen recipe add Qwen3.6-27B --from https://github.com/vllm-project/recipes --model-variant fp8
    """
    if yes and dry_run:
        raise UsageError("--yes and --dry-run exclude each other")
    change = app.add(session, app.find(name, place, ref, variant), called, extends, image=image)
    if wants_json():
        if yes:
            change.write()
        print_json({"profile": change.profile, "left": list(change.left), "diff": change.diff, "written": yes})
        return ExitCode.OK
    click.echo(visible(change.diff, lines=True))
    for setting in change.left:
        progress(f"not placed: {setting}", always=True)
    if dry_run:
        return ExitCode.OK
    if not (yes or ask(f"write {change.file.name}?")):
        raise RefusedError(f"{change.file.name} is unchanged: not confirmed", hint="add --yes to write without asking")
    change.write()
    progress(f"wrote {change.file.name}; next: envgen predict -p {change.profile}")
    return ExitCode.OK
