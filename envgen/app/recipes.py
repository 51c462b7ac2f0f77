"""`envgen recipe`: find recipes (shipped, in a file, folder or git repository) and add one to a project."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from envgen import files
from envgen.app.session import Session
from envgen.engine.git import Mirror
from envgen.errors import EnvgenError, Place, Problem, ProjectError, RefusedError, UsageError
from envgen.patches.source import GitTree
from envgen.predict.memory import Estimate, estimate
from envgen.profile.load import called, load_project
from envgen.profile.model import Profile
from envgen.profile.shape import NAME, as_profile_name, matches
from envgen.profile.tree import decode, near, text_of
from envgen.recipes.read import LARGEST, Recipe, name_of, read_recipe
from envgen.recipes.shipped import shipped, size_of
from envgen.recipes.write import GB10, added, indent_of, left_of, profile_body, profile_text
from envgen.redact import without_login

_MOST = 5000  # files of a folder or repository
_YAML = (".yaml", ".yml")
_GIT = re.compile(r"(?:https|http|ssh|git|file)://\S+|[\w.-]+@[\w.-]+:\S+")


def estimate_of(recipe: Recipe) -> Estimate | None:
    """The memory of a shipped recipe on a GB10; None for other recipes."""
    return estimate(size_of(recipe), int(GB10 * (1 << 30)), unified=True)


@dataclass(frozen=True)
class Collection:
    """Paths of files that may be recipes, with their origin."""

    source: str
    commit: str
    paths: Sequence[str]
    folder: Path | None = None
    tree: GitTree | None = None

    def find(self, name: str) -> str:
        """The path of a recipe, by its path or its file name."""
        wanted = name_of(name)
        found = [path for path in self.paths if path == name] or [p for p in self.paths if name_of(p) == wanted]
        if not found:
            known = sorted({name_of(path) for path in self.paths})
            raise UsageError(
                f"{self.source} has no recipe {name!r}", hint=near(wanted, known) or "envgen recipe list --from ..."
            )
        if len(found) > 1:
            raise UsageError(f"{name!r} matches several recipes", hint=f"use a path: {', '.join(found[:4])}")
        return found[0]

    def text(self, path: str) -> str:
        """The text of a file."""
        if self.tree is None:
            assert self.folder is not None
            return text_of(self.folder / path, path)
        read = self.tree.read([path])
        if path not in read:
            raise UsageError(f"{path} is not a file of {self.source}")
        if len(read[path].data) > LARGEST:
            raise ProjectError([Problem(f"is larger than {LARGEST >> 10} KiB, the limit for a recipe", Place(path))])
        return decode(read[path].data, path)


def collection(place: str, ref: str = "") -> Collection:
    """The recipes of a folder, or of a git repository at ``ref`` (default: HEAD)."""
    if _GIT.fullmatch(place):
        return _repository(place, ref or "HEAD")
    folder = Path(place).expanduser()
    if not folder.is_dir():
        raise UsageError(f"{place} is neither a folder nor the URL of a git repository")
    paths: list[str] = []
    for number, path in enumerate(sorted(folder.rglob("*"))):
        if number >= _MOST:
            raise RefusedError(f"{place} has more than {_MOST} files", hint="name the folder with the recipes")
        if path.suffix in _YAML and path.is_file() and not path.is_symlink():
            paths.append(path.relative_to(folder).as_posix())
    return Collection(place, "", paths, folder)


def _repository(url: str, ref: str) -> Collection:
    shown = without_login(url)
    mirror, commit = Mirror.fetched(url, ref, moves=True, timeout=120)
    tree = GitTree(mirror, commit, f"{commit[:12]} of {shown}")
    paths = sorted(path for path in tree.names if path.endswith(_YAML))
    return Collection(shown, commit, paths[:_MOST], tree=tree)


def find(name: str, place: str = "", ref: str = "", variant: str = "") -> Recipe:
    """A recipe: shipped (by name), a file (by path), or ``name`` in the folder or repository ``place``."""
    today = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    if place:
        where = collection(place, ref)
        path = where.find(name)
        recipe = read_recipe(where.text(path), path, variant=variant)
        return replace(recipe, source=f"{where.source} {path}", commit=where.commit, date=today)
    if name.endswith(_YAML) or "/" in name:
        file = Path(name).expanduser()
        if not file.is_file():
            raise UsageError(f"{name} is not a file", hint="`envgen recipe list` lists the shipped recipes")
        recipe = read_recipe(text_of(file, name), name, variant=variant)
        return replace(recipe, source=recipe.source or file.name, date=recipe.date or today)
    known = shipped()
    if name not in known:
        hint = near(name, sorted(known)) or f"choose one of {', '.join(known)}, a file, or --from FOLDER or URL"
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
        old, new = (text.splitlines(keepends=True) for text in (self.before, self.after))
        return "".join(difflib.unified_diff(old, new, self.file.name, self.file.name, n=2)).rstrip("\n")

    def write(self) -> None:
        """Write the file. RefusedError if it has changed since it was read, or is a link to elsewhere."""
        if text_of(self.file, self.file.name) != self.before:
            raise RefusedError(f"{self.file.name} has changed meanwhile; nothing was written", hint="run it again")
        files.write(files.inside(self.file, self.file.parent), self.after.encode())


def add(session: Session, recipe: Recipe, name: str = "", extends: str = "", *, image: bool = False) -> Added:
    """The change that adds the recipe as a profile; nothing is written. ProjectError if the result would not load.

    ``image``: the recipe's image is its base, with the vLLM in it.
    """
    if image and not recipe.image:
        raise UsageError(f"the recipe {recipe.name} names no image", hint="remove --image")
    loaded = session.loaded(local=False)
    project = loaded.project
    parent = _parent(project.profiles, called(extends) or session.profile_name or "")
    service = next((one for one, found in parent.services.items() if found.ready is not None), "")
    if not service:
        raise RefusedError(
            f"profile {parent.name} has no service with `ready`",
            hint="add `ready: {port: 8000}` to its server, or name another profile: --extends PROFILE",
        )
    name = name or as_profile_name(recipe.name)
    if not matches(NAME, name):
        raise UsageError(f"{name!r} is not a profile's name", hint=f"write --name {as_profile_name(name)}")
    if name in project.profiles:
        raise RefusedError(f"profile {name} already exists", hint="choose another name: --name NAME")
    path = project.file
    before = text_of(path, path.name)
    machines, tree = list(parent.nodes), loaded.trees[parent.name]
    left = left_of(recipe, parent, machines, image)
    body = profile_body(recipe, parent, service, tree, machines, image)
    after = added(before, profile_text(recipe, name, parent, body, left, indent_of(before)))
    _validate(path, after, name)
    return Added(path, before, after, name, left)


def _parent(profiles: Mapping[str, Profile], wanted: str) -> Profile:
    names = list(profiles)
    chosen = wanted or ("prod" if "prod" in names else "")
    if chosen not in names:
        message = f"no profile {chosen!r}" if chosen else "no profile `prod` to extend"
        raise UsageError(message, hint=f"choose one: --extends {' or '.join(names)}")
    return profiles[chosen]


def _validate(file: Path, text: str, name: str) -> None:
    """Load the new project file before it is written. ProjectError, RefusedError if that fails."""
    try:
        load_project(file=file, text=text, local=False).project.profiles[name]
    except ProjectError as error:
        first, *rest = error.problems
        head = f"the recipe makes an invalid profile; {file.name} is unchanged: "
        raise ProjectError([replace(first, message=head + first.message), *rest]) from None
    except EnvgenError as error:
        raise RefusedError(f"the recipe makes an invalid profile: {error}") from None
