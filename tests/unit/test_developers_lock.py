"""requirements-dev.txt: what pyproject.toml asks for, at versions that fit, with hashes and without an index."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

TOP = Path(__file__).parents[2]
LOCK = (TOP / "requirements-dev.txt").read_text("utf-8")
PROJECT = (TOP / "pyproject.toml").read_text("utf-8")


def asked() -> list[Requirement]:
    """The requirements of the project and of its groups. Python 3.10 has no reader of TOML."""
    parts = re.findall(r"^(?:dependencies|test|docs|dev) = \[(.*?)\]$", PROJECT, re.MULTILINE | re.DOTALL)
    assert len(parts) == 4
    parts = [re.sub(r"{.*?}", "", part) for part in parts]  # a group in a group
    return [Requirement(word) for part in parts for word in re.findall(r'"([^"\n]+)"', part)]


@pytest.mark.parametrize("requirement", asked(), ids=str)
def test_each_is_locked_at_a_version_that_fits(requirement: Requirement) -> None:
    name = re.escape(canonicalize_name(requirement.name))
    pinned = re.findall(rf"^{name}==(\S+)", LOCK, re.MULTILINE)
    assert pinned and all(requirement.specifier.contains(Version(one)) for one in pinned)


def test_it_has_hashes_and_no_address() -> None:
    assert "://" not in LOCK
    for block in re.split(r"\n(?=\S)", LOCK.strip()):
        assert "--hash=sha256:" in block, block
