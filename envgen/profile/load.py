"""Finds, reads, merges, binds and checks a project file."""

from __future__ import annotations

import hashlib
import os
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn, TypeVar

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
    join_path,
    label_of,
    lay_over,
    profile_hint,
    read,
    suggestion,
    written,
)

FILE_NAME = "envgen.yaml"
LOCAL_NAME = "envgen.local.yaml"
T = TypeVar("T")


@dataclass(frozen=True)
class Loaded:
    """A project, and the trees that its profiles were bound from."""

    project: Project
    trees: Mapping[str, YamlNode]  # profile name -> merged tree; see schema.values
    chosen: str = ""  # the profile in use
    personal: bool = False  # the local file or a variable may have changed it

    def place_of(self, profile: str, key: str) -> Place | None:
        """The place of a key of a profile in the project file; None for a default."""
        node = self.trees[profile].at(key.split(".")) if key and profile in self.trees else None
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
    written = _read_files(path, text, problems, local=local, searched=file is None)
    profiles = written.sections[0][1]
    of_machine = from_environ(environ, problems) if local else []
    overrides = [*of_machine, *from_sets(sets, problems)]
    known = len(problems)
    chains = layers.chains(profiles, problems)
    partial = (
        written.broken or len(problems) > known
    )  # then what a profile lacks may come from the broken one
    trees = layers.layered(written.sections, chains)
    chosen = profile or written.default
    varied = False
    before = trees.get(chosen)
    if before is not None:
        varied_tree = with_variant(before, variant) if variant else None
        problems += contradictions(before, variant)
        varied = varied_tree is not None
        trees[chosen] = layers.overridden(varied_tree or before, overrides)
    bound = dict[str, Profile]()
    for key in sorted(trees, key=lambda name: len(chains[name])):
        tree = trees[key]
        binding = Binding(partial=partial)
        given = {
            "name": key,
            "project": written.name,
            "variant": variant if key == chosen and varied else "",
        }
        above = [bound[name] for name in reversed(chains[key][:-1])]
        bound[key] = completed(binding.record(Profile, tree, "", **given), tree, above)
        check_profile(bound[key], tree, binding, path.parent)
        problems += binding.problems
    if not problems:
        problems += check_project(bound, trees)
    if profiles and written.default and written.default not in profiles:
        place = written.top.items["default_profile"].place("default_profile")
        hint = profile_hint(written.default, list(profiles))
        problems.append(Problem(f"profile {written.default!r} does not exist", place, hint))
    if problems:
        _raise(problems)
    in_order = {key: bound[key] for key in trees}
    project = Project(written.name, written.default, in_order, file=path, root=path.parent)
    personal = len(written.sections) > 1 or bool(of_machine)
    return Loaded(project, trees, chosen, personal)


@dataclass(frozen=True)
class _Written:
    """What the project file and the local one say. ``top``: of the one that names the default
    profile.

    ``sections``: defaults and profiles of each; ``broken``: a profile of the first is no mapping.
    """

    name: str
    default: str
    top: YamlNode
    sections: list[tuple[YamlNode, dict[str, YamlNode]]]
    broken: bool


def _read_files(
    path: Path, text: str | None, problems: list[Problem], *, local: bool, searched: bool
) -> _Written:
    """``searched``: the project file was not named, so another user's local file is refused."""
    top = read(path, label_of(path), text=text)
    head = _top(ProjectFile, top, problems)
    sections = [_sections(top, problems)]
    profiles = sections[0][1]
    whole = top.items.get("profiles")
    if not profiles and (whole is None or whole.kind in (MAP, NULL)):
        place = (whole or top).place("profiles")
        problems.append(
            Problem("a project needs at least one profile", place, "write them below `profiles:`")
        )
    broken = whole is not None and any(node.kind not in (MAP, NULL) for node in whole.elements)
    name = head.name
    default = head.default_profile or next(iter(profiles), "")
    local_path = path.with_name(LOCAL_NAME)
    if not local or not local_path.exists():
        return _Written(name, default, top, sections, broken)
    if searched:
        _refuse_foreign(local_path)
    own = read(local_path, label_of(local_path), layer=LOCAL)
    sections.append(_sections(own, problems))
    for added, node in sections[1][1].items():
        if added not in profiles:
            message = f"profile {added!r} does not exist; overrides can't add it"
            hint = profile_hint(added, list(profiles))
            problems.append(Problem(message, node.key_place(f"profiles.{added}"), hint))
        if "extends" in node.items:
            place = node.items["extends"].key_place(f"profiles.{added}.extends")
            problems.append(
                Problem("the personal file cannot change what a profile extends", place)
            )
    personal = _top(LocalFile, own, problems)
    top = own if personal.default_profile else top
    return _Written(
        personal.name or name, personal.default_profile or default, top, sections, broken
    )


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
    unique: dict[tuple[object, ...], Problem] = {}
    for problem in problems:
        place = problem.place
        unique.setdefault(
            (place and (place.file, place.line, place.column), problem.message, problem.hint),
            problem,
        )
    files = list(dict.fromkeys(p.place.file for p in unique.values() if p.place))

    def rank(problem: Problem) -> tuple[int, int, int]:
        place = problem.place
        return (files.index(place.file), place.line, place.column) if place else (len(files), 0, 0)

    raise ProjectError(sorted(unique.values(), key=rank))


def _top(cls: type[T], top: YamlNode, problems: list[Problem]) -> T:
    """The keys at the top of a file, without its sections and x- keys, which are for anchors, as in
    Compose.
    """
    own = {
        key: one
        for key, one in top.items.items()
        if key not in ("defaults", "profiles") and key[:2] != "x-"
    }
    binding = Binding()
    record: T = binding.record(cls, top.with_items(own), "")
    problems += binding.problems
    return record


def _sections(top: YamlNode, problems: list[Problem]) -> tuple[YamlNode, dict[str, YamlNode]]:
    """The defaults and the profiles of a file."""
    defaults = layers.section(top, "defaults", problems)
    profiles: dict[str, YamlNode] = {}
    for name, node in layers.section(top, "profiles", problems).items.items():
        key = f"profiles.{name}"
        if not matches(NAME, name):
            hint = f"write {as_profile_name(name)}: {NAME.meaning}"
            problems.append(Problem(f"{name!r} is not a profile name", node.key_place(key), hint))
        if node.kind not in (MAP, NULL):
            problems.append(Problem(f"expected a mapping, found {node.seen()}", node.place(key)))
        # Others may extend it, so what is no mapping counts as an empty one.
        profiles[name] = layers.expand_short_forms(
            node if node.kind == MAP else replace(node, kind=MAP, items={})
        )
    return layers.expand_short_forms(defaults), profiles


def with_variant(tree: YamlNode, variant: str) -> YamlNode | None:
    """``tree`` with a variant laid over it, or several (``a+b``) in this order; None where it lacks
    one.
    """
    for name in variant.split("+"):
        over = lay_over(tree, name)
        if over is None:
            return None
        tree = layers.merge(tree, over)
    return tree


def contradictions(tree: YamlNode, variant: str) -> Iterator[Problem]:
    """A problem for each value that two of several variants (``a+b``) set differently."""
    before = dict[tuple[str, ...], tuple[str, str]]()
    for name in variant.split("+"):
        over = lay_over(tree, name)
        values = list(written(over)) if over is not None else []
        for path, text, node in values:
            for earlier, (other, value) in before.items():
                same = min(len(earlier), len(path))
                if earlier[:same] == path[:same] and (earlier != path or value != text):
                    where = node.place(f"variants.{name}.{join_path(path)}")
                    yield Problem(
                        f"{other}, too, sets this, and otherwise: {variant} is a contradiction",
                        where,
                    )
        before |= {path: (name, text) for path, text, _ in values}


LENGTH = 40


def as_name(text: str) -> str:
    """``text`` as a name for Docker: lower-case letters and digits, dashes between them."""
    plain = unicodedata.normalize("NFKD", text.lower()).encode("ascii", "ignore").decode()
    name = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:LENGTH].strip("-")
    return name or hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:8]
