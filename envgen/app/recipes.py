"""`envgen recipe`: find a recipe (shipped, or in a file), and add it to a project."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from envgen import files
from envgen.app.session import Session
from envgen.errors import ProjectError, RefusedError, UsageError
from envgen.profile.load import load_project, profile_name_of, select
from envgen.profile.shape import NAME, as_profile_name, matches
from envgen.profile.tree import file_text, suggestion
from envgen.recipes.command import read_command
from envgen.recipes.read import LARGEST, Recipe, read_recipe
from envgen.recipes.shipped import shipped
from envgen.recipes.write import added, indent_of, left_of, profile_body, profile_text

_ENDINGS = (".yaml", ".yml", ".sh")


def find(name: str, variant: str = "") -> Recipe:
    """A recipe: shipped (by name), or a file (by path; ``-``: standard input)."""
    file = Path(name).expanduser()
    if name == "-" or file.suffix in _ENDINGS or "/" in name or file.is_file():
        if name != "-" and not file.is_file():
            raise UsageError(
                f"{name} is not a file", hint="`envgen recipe list` lists the shipped recipes"
            )
        text = sys.stdin.read(LARGEST + 1) if name == "-" else file_text(file, name)
        recipe = read_command(text, name) or read_recipe(text, name, variant=variant)
        today = str(datetime.now(timezone.utc).date())
        return replace(recipe, source=recipe.source or file.name, date=recipe.date or today)
    known = shipped()
    if name not in known:
        hint = suggestion(name, sorted(known)) or f"choose one of {', '.join(known)}, or a file"
        raise UsageError(f"no recipe {name!r}", hint=hint)
    if variant:
        raise UsageError("the shipped recipes have no variants", hint="remove --model-variant")
    return known[name]


@dataclass(frozen=True)
class Added:
    """The change of the project file by a recipe. ``left``: parts of the recipe that are not in it."""

    file: Path
    before: str
    after: str
    profile: str
    left: Sequence[str]

    @property
    def diff(self) -> str:
        """The change as a unified diff."""
        old = self.before.splitlines(keepends=True)
        new = self.after.splitlines(keepends=True)
        name = self.file.name
        lines = difflib.unified_diff(old, new, name, name, n=2)
        return "".join(lines).rstrip("\n")

    def write(self) -> None:
        """Write the file. RefusedError if it has changed since it was read, or is a link to
        elsewhere.
        """
        if file_text(self.file, self.file.name) != self.before:
            raise RefusedError(
                f"{self.file.name} has changed meanwhile; nothing was written", hint="run it again"
            )
        place = files.inside(self.file, self.file.parent)
        files.write(place, self.after.encode())


def add(
    session: Session, recipe: Recipe, name: str = "", extends: str = "", *, image: bool = False
) -> Added:
    """The change that adds the recipe as a profile; nothing is written. ProjectError if the result
    would not load.

    ``image``: the recipe's image is its base, with the vLLM in it.
    """
    image = image or bool(recipe.image and recipe.service)  # a command, made for its image
    if image and not recipe.image:
        raise UsageError(f"the recipe {recipe.name} names no image", hint="remove --image")
    loaded = session.loaded(local=False)
    project = loaded.project
    parent = select(project, profile_name_of(extends) or session.profile_name or "prod")
    ready = [name for name, service in parent.services.items() if service.ready is not None]
    if not ready:
        raise RefusedError(
            f"profile {parent.name} has no service with `ready`",
            hint="add `ready: {port: 8000}` to its server, or name another profile: --extends PROFILE",
        )
    name = name or as_profile_name(recipe.name)
    if not matches(NAME, name):
        raise UsageError(
            f"{name!r} is not a profile's name", hint=f"write --name {as_profile_name(name)}"
        )
    if name in project.profiles:
        raise RefusedError(
            f"profile {name} already exists", hint="choose another name: --name NAME"
        )
    path = project.file
    before = file_text(path, path.name)
    machines = list(parent.nodes)
    tree = loaded.trees[parent.name]
    left = left_of(recipe, parent, machines, image)
    body = profile_body(recipe, parent, ready[0], tree, machines, image)
    lines = profile_text(recipe, name, parent, body, left, indent_of(before))
    after = added(before, lines)
    _validate(path, after)
    return Added(path, before, after, name, left)


def _validate(file: Path, text: str) -> None:
    """Load the new project file before it is written. ProjectError if that fails."""
    try:
        load_project(file=file, text=text, local=False)
    except ProjectError as error:
        first, *rest = error.problems
        head = f"the recipe makes an invalid profile; {file.name} is unchanged: "
        raise ProjectError([replace(first, message=head + first.message), *rest]) from None
