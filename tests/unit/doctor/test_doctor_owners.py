"""Files of root's in folders of a user."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from envgen.doctor import around


@pytest.fixture
def roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree of the user's in which some paths look like root's."""
    for name in ("a/mine", "b/of-root", "of-root/below"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "b")
    monkeypatch.setattr(around, "is_of_root", lambda path, _stat: Path(path).name == "of-root")
    return tmp_path


def test_they_are_found_by_their_owner_and_not_through_links(roots: Path) -> None:
    assert sorted(around.of_root(str(roots))) == [f"{roots}/b/of-root", f"{roots}/of-root"]


def test_a_large_folder_is_not_walked_to_its_end(roots: Path) -> None:
    assert around.of_root(str(roots), most=4) == [f"{roots}/of-root"]


def test_a_folder_that_is_not_there_has_none(tmp_path: Path) -> None:
    assert around.of_root(str(tmp_path / "none")) == []


def test_root_is_uid_0(tmp_path: Path) -> None:
    found = os.stat_result((0o100644, 1, 1, 1, 0, 5, 0, 0, 0, 0))
    assert around.is_of_root("x", found)
    assert not around.is_of_root("x", os.stat_result((0o100644, 1, 1, 1, 7, 0, 0, 0, 0, 0)))
