"""Finds, reads, merges, binds and checks a project file."""

from __future__ import annotations

import hashlib
import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn

from envgen import files
from envgen.errors import Place, Problem, ProjectError, RefusedError, UsageError
from envgen.profile import layers
from envgen.profile.bind import Binding
from envgen.profile.checks import check_profile, check_project
from envgen.profile.follows import completed
from envgen.profile.layers import from_environ, from_sets
from envgen.profile.model import LocalFile, Profile, Project, ProjectFile
from envgen.profile.shape import NAME, as_profile_name, matches
from envgen.profile.tree import (
    LOCAL,
    MAP,
    NULL,
    YamlNode,
    label_of,
    overlay,
    profile_hint,
    read,
    suggestion,
)

FILE_NAME = "envgen.yaml"
LOCAL_NAME = "envgen.local.yaml"


@dataclass(frozen=True)
class Loaded:
    """A project, and the trees that its profiles were bound from."""

    project: Project
    trees: Mapping[str, YamlNode]  # profile name -> merged tree; see schema.values
    chosen: str = ""  # the profile in use
    personal: bool = False  # the local file or a variable may have changed it

    def place_of(self, profile: str, key: str) -> Place | None:
        """The place of a key of a profile in the project file; None for a default."""
        if not key or profile not in self.trees:
            return None
        node = self.trees[profile].at(key.split("."))
        return node.place() if node is not None and node.place().line else None


def find(start: Path) -> Path:
    """The project file in ``start`` or the nearest folder above it. Raises UsageError."""
    start = Path(os.path.abspath(start))  # noqa: PTH100  (resolve() would follow links away from the user's cwd)
    for folder in (start, *start.parents):
        candidate = folder / FILE_NAME
        if candidate.exists():
            _refuse_foreign(candidate)
            return candidate
    raise UsageError(
        f"no {FILE_NAME} in {start} or a folder above it",
        hint="`envgen init DIR` writes a starter project; -f names a file elsewhere",
    )


def require_alone(project: Project) -> None:
    """RefusedError for a project file beside an envgen.yaml: both would write envgen.lock and the
    rendered files.
    """
    if project.file.name != FILE_NAME and (project.root / FILE_NAME).exists():
        message = f"{project.file.name} is beside {FILE_NAME}, and both would write envgen.lock and the rendered files"
        raise RefusedError(message, hint="move it to a folder of its own")


def _refuse_foreign(path: Path) -> None:
    """RefusedError for another user's file that was found, not named: anybody can leave one in
    /tmp.
    """
    if not files.is_ours(path, root=True):
        message = f"{path} belongs to another user (uid {path.lstat().st_uid})"
        raise RefusedError(message, hint=f"if you trust it, name it: -f {path}")


def load_project(
    start: Path | None = None,
    *,
    file: Path | None = None,
    text: str | None = None,
    sets: Sequence[str] = (),
    environ: Mapping[str, str] = MappingProxyType({}),
    local: bool = True,
    profile: str | None = None,
    variant: str = "",
) -> Loaded:
    """Load the project file found upward from ``start`` (default: the cwd), or ``file``, which is
    to have ``text``.

    The overrides ``sets`` and ``environ``, and ``variant``, change the ``profile`` in use (None:
    the default one); `select` refuses an unknown profile or variant. ``local=False``, for committed
    files, ignores the local file and ``environ``. Raises ProjectError with all problems, or
    UsageError without a file.
    """
    path = Path(os.path.abspath(file)) if file else find(start or Path.cwd())  # noqa: PTH100
    problems: list[Problem] = []
    files = [_file(ProjectFile, read(path, label_of(path), text=text), problems)]
    _require_profile(files[0], problems)
    local_path = path.with_name(LOCAL_NAME)
    is_personal = local and local_path.exists()
    if is_personal:
        if file is None:
            _refuse_foreign(local_path)  # it was found, not named
        files.append(_personal(local_path, files[0], problems))
    name = files[-1].head.name or files[0].head.name or ""
    profiles = files[0].profiles
    default = _default_of(files, problems) or next(iter(profiles), "")
    of_machine = from_environ(environ, problems) if local else []
    overrides = [*of_machine, *from_sets(sets, problems)]
    chains = layers.chains(profiles, problems)
    trees = layers.layered([(one.defaults, one.profiles) for one in files], chains)
    chosen = profile or default
    variants = {}  # profile -> its variant
    if chosen in trees:
        varied = with_variant(trees[chosen], variant) if variant else None
        if varied:
            trees[chosen] = varied
            variants[chosen] = variant
        trees[chosen] = layers.overridden(trees[chosen], overrides)
    partial = bool(problems)  # what a profile lacks may be in what is wrong
    bound = dict[str, Profile]()
    for key in sorted(trees, key=lambda name: len(chains[name])):
        binding = Binding(partial=partial)
        given = {"name": key, "project": name, "variant": variants.get(key, "")}
        *parents, _ = chains[key]
        above = [bound[parent] for parent in reversed(parents)]
        bound[key] = _bound(trees[key], binding, given, above, path.parent)
        problems += binding.problems
    if not problems:
        problems += check_project(bound, trees)
    if problems:
        _raise(problems)
    in_order = {key: bound[key] for key in trees}
    project = Project(name, default, in_order, file=path, root=path.parent)
    return Loaded(project, trees, chosen, is_personal or bool(of_machine))


def _bound(
    tree: YamlNode,
    binding: Binding,
    given: dict[str, str],
    above: Sequence[Profile],
    root: Path,
) -> Profile:
    """A profile from its merged tree. ``above``: those that it extends, the nearest first."""
    written = binding.record(Profile, tree, "", **given)
    profile = completed(written, tree, above)
    check_profile(profile, tree, binding, root)
    return profile


@dataclass(frozen=True)
class _File:
    """What the project file or the personal one says. ``head``: its keys at the top."""

    top: YamlNode
    head: ProjectFile | LocalFile
    defaults: YamlNode
    profiles: dict[str, YamlNode]


def _file(kind: type[ProjectFile | LocalFile], top: YamlNode, problems: list[Problem]) -> _File:
    """A file without its x- keys, which are for anchors, as in Compose."""
    own = {}
    for key, node in top.items.items():
        if key not in ("defaults", "profiles") and not key.startswith("x-"):
            own[key] = node
    binding = Binding()
    head = binding.record(kind, top.with_items(own), "")
    problems += binding.problems
    defaults = layers.expand_short_forms(layers.section(top, "defaults", problems))
    return _File(top, head, defaults, _profiles(top, problems))


def _require_profile(file: _File, problems: list[Problem]) -> None:
    whole = file.top.items.get("profiles", file.top)
    if file.profiles or whole.kind not in (MAP, NULL):
        return
    place = whole.place("profiles")
    hint = "write them below `profiles:`"
    problem = Problem("a project needs at least one profile", place, hint)
    problems.append(problem)


def _personal(path: Path, shared: _File, problems: list[Problem]) -> _File:
    """The personal file, which may change profiles that there are, and not what they extend."""
    personal = _file(LocalFile, read(path, label_of(path), layer=LOCAL), problems)
    for name, node in personal.profiles.items():
        if name not in shared.profiles:
            message = f"profile {name!r} does not exist; overrides can't add it"
            hint = profile_hint(name, list(shared.profiles))
            problems.append(Problem(message, node.key_place(f"profiles.{name}"), hint))
        if "extends" in node.items:
            place = node.items["extends"].key_place(f"profiles.{name}.extends")
            message = "the personal file cannot change what a profile extends"
            problems.append(Problem(message, place))
    return personal


def _default_of(files: Sequence[_File], problems: list[Problem]) -> str:
    """The default profile that the last of ``files`` names; "" if none does."""
    named = [one for one in files if one.head.default_profile]
    if not named:
        return ""
    default = str(named[-1].head.default_profile)
    profiles = files[0].profiles
    if profiles and default not in profiles:
        place = named[-1].top.items["default_profile"].place("default_profile")
        hint = profile_hint(default, list(profiles))
        problems.append(Problem(f"profile {default!r} does not exist", place, hint))
    return default


def profile_name_of(text: str) -> str:
    """The name of the profile that a command line calls ``text``: a recipe's name is its profile's,
    too.
    """
    return as_profile_name(text) if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", text) else text


def select(project: Project, name: str | None, variant: str = "") -> Profile:
    """The profile ``name``, or the default one. Raises UsageError with the names that there are.

    ``variant``: the one that the project was loaded with; UsageError where the profile does not
    have it.
    """
    wanted = name or project.default_profile
    if wanted not in project.profiles:
        hint = profile_hint(wanted, list(project.profiles))
        raise UsageError(f"{project.file.name} has no profile {wanted!r}", hint=hint)
    profile = project.profiles[wanted]
    if variant and profile.variant != variant:
        known = list(profile.variants)
        unknown = next((part for part in variant.split("+") if part not in known), variant)
        hint = suggestion(unknown, known) or "write it below `variants:` of the profile"
        raise UsageError(f"profile {profile.name} has no variant {unknown!r}", hint=hint)
    return profile


def _raise(problems: Sequence[Problem]) -> NoReturn:
    """Raise ProjectError with each problem once (profiles share their defaults), in the order of
    the file.
    """
    unique: dict[object, Problem] = {}
    files: dict[str, int] = {}  # in the order in which they are named
    for problem in problems:
        place = problem.place
        where = None
        if place:
            files.setdefault(place.file, len(files))
            where = place.file, place.line, place.column
        unique.setdefault((where, problem.message, problem.hint), problem)

    def rank(problem: Problem) -> tuple[int, int, int]:
        place = problem.place
        if place is None:
            return len(files), 0, 0
        return files[place.file], place.line, place.column

    raise ProjectError(sorted(unique.values(), key=rank))


def _profiles(top: YamlNode, problems: list[Problem]) -> dict[str, YamlNode]:
    """The profiles of a file. Others may extend one, so what is no mapping counts as an empty one."""
    profiles = {}
    for name, node in layers.section(top, "profiles", problems).items.items():
        key = f"profiles.{name}"
        if not matches(NAME, name):
            hint = f"write {as_profile_name(name)}: {NAME.meaning}"
            problems.append(Problem(f"{name!r} is not a profile name", node.key_place(key), hint))
        if node.kind not in (MAP, NULL):
            problems.append(Problem(f"expected a mapping, found {node.seen()}", node.place(key)))
        if node.kind != MAP:
            node = replace(node, kind=MAP, items={})
        profiles[name] = layers.expand_short_forms(node)
    return profiles


def with_variant(tree: YamlNode, variant: str) -> YamlNode | None:
    """``tree`` with a variant laid over it, or several (``a+b``) in this order, of which the last
    one wins; None where it lacks one.
    """
    for name in variant.split("+"):
        node = tree.at(("variants", name))
        if node is None or node.kind != MAP:
            return None
        tree = layers.merge(tree, overlay(node))
    return tree


LENGTH = 40


def as_name(text: str) -> str:
    """``text`` as a name for Docker: lower-case letters and digits, dashes between them."""
    plain = unicodedata.normalize("NFKD", text.lower()).encode("ascii", "ignore").decode()
    name = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:LENGTH].strip("-")
    return name or hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:8]
