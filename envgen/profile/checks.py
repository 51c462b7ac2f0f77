"""Semantic checks over a bound profile: what types and patterns cannot say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from envgen.errors import Problem
from envgen.profile.bind import Binding
from envgen.profile.model import Profile
from envgen.profile.tree import Node


def check_profile(profile: Profile, tree: Node, binding: Binding, root: Path) -> None:
    """Note everything that is wrong with ``profile``."""


def check_project(profiles: Mapping[str, Profile], trees: Mapping[str, Node]) -> list[Problem]:
    """What is wrong between the profiles of one project."""
    return []
