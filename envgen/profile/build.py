"""Trees -> profiles: merge each profile's layers, apply the overrides, bind, check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from envgen.errors import Place, Problem
from envgen.profile import layers
from envgen.profile.bind import Binding
from envgen.profile.checks import check_profile, check_project
from envgen.profile.model import Profile
from envgen.profile.overrides import Override
from envgen.profile.tree import Node, lay_over, near

Files = Sequence[tuple[Node, dict[str, Node]]]


class Builder:
    """Builds all profiles of a project. ``good`` and ``broken`` hold the outcome, ``trees`` what was merged."""

    def __init__(
        self,
        project: str,
        root: Path,
        files: Files,
        overrides: Sequence[Override],
        variant: str = "",
        instance: str = "",
    ) -> None:
        self.project = project
        self.variant = variant
        self.instance = instance
        self.root = root
        self.files = files
        self.overrides = overrides
        self.good: dict[str, Profile] = {}
        self.broken: dict[str, list[Problem]] = {}
        self.trees: dict[str, Node] = {}
        self.warnings: list[str] = []

    def build(self, chains: Mapping[str, layers.Chain], problems: list[Problem]) -> None:
        """Build each profile.

        A problem of the files goes to ``problems``. One that only an override or the variant brings, and only into
        some of the profiles, waits in ``broken`` until such a profile is used.
        """
        shared = layers.name_dockerfiles(self.files, layers.layered(self.files, chains, self.warnings))
        waiting: dict[str, list[Problem]] = {}
        for name, tree in shared.items():
            over = lay_over(tree, self.variant) if self.variant else None
            varied = layers.merge(tree, over) if over is not None else tree
            full = self._with_overrides(varied, shared, found := [])
            self.trees[name] = full
            partial = not chains[name][1]
            profile, more = self._bind(name, full, partial, self.variant if over is not None else "")
            found += more
            if not found:
                self.good[name] = profile
            elif full is tree and not self.overrides:
                problems += found
            else:
                own = self._bind(name, tree, partial)[1]
                if own:
                    problems += [*own, *found]
                else:
                    waiting[name] = found
        if waiting and not self.good:
            for found in waiting.values():
                problems += found
        self.broken = waiting
        if not problems:
            problems += check_project(self.good, shared)

    def _bind(self, name: str, tree: Node, partial: bool, variant: str = "") -> tuple[Profile, list[Problem]]:
        binding = Binding(partial=partial)
        given = {"name": name, "project": self.project, "variant": variant, "instance": self.instance}
        profile: Profile = binding.record(Profile, tree, "", **given)
        check_profile(profile, tree, binding, self.root)
        return _chosen_groups(profile), binding.problems

    def _with_overrides(self, tree: Node, shared: Mapping[str, Node], problems: list[Problem]) -> Node:
        for override in self.overrides:
            path = layers.spell(tree, override)
            entry = layers.entry_of(path)
            if entry and entry[1] not in layers.entries(tree, entry[0]):
                prefix, name = entry
                known = list(dict.fromkeys(n for other in shared.values() for n in layers.entries(other, prefix)))
                if name in known:
                    continue  # it is meant for another profile
                place = Place(override.node.source.label)
                problems.append(Problem(f"there is no {'.'.join(prefix)}.{name}", place, near(name, known)))
                continue
            blocked = layers.list_in_the_way(path)
            if blocked:
                problems.append(replace(blocked, place=Place(override.node.source.label)))
                continue
            over = layers.spelled_out(layers.as_tree(path, override.node))
            if override.from_environment:
                over = layers.without_foreign_checkouts(tree, over, self.warnings)
            tree = layers.merge(tree, over)
        return tree


def _chosen_groups(profile: Profile) -> Profile:
    """The profile with the groups of env that are in use; from here on the others are gone."""
    if profile.env_groups is None:
        return profile
    env = {name: group for name, group in profile.env.items() if name in profile.env_groups}
    return replace(profile, env=MappingProxyType(env))
