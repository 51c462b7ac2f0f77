"""What `envgen status` says about a checkout, by the real git."""

from __future__ import annotations

from pathlib import Path

from envgen.app.status import checkout
from envgen.engine.git import git


def test_branch_and_dirty_state(tmp_path: Path) -> None:
    git(["init", "-q", "-b", "main", "."], cwd=tmp_path)
    empty = checkout(tmp_path)
    assert (empty["branch"], empty["commit"], empty["edited"]) == ("main", None, 0)
    (tmp_path / "a").write_text("1")
    git(["add", "a"], cwd=tmp_path)
    git(["commit", "-qm", "first"], cwd=tmp_path)
    clean = checkout(tmp_path)
    assert (clean["branch"], clean["edited"], clean["untracked"], clean["trouble"]) == ("main", 0, 0, None)
    (tmp_path / "a").write_text("2")
    (tmp_path / "b").write_text("3")
    git(["checkout", "-q", "--detach"], cwd=tmp_path)
    dirty = checkout(tmp_path)
    assert (dirty["branch"], dirty["commit"]) == (None, clean["commit"])
    assert (dirty["edited"], dirty["untracked"]) == (1, 1)


def test_a_folder_that_is_not_a_checkout_is_named(tmp_path: Path) -> None:
    assert "is not a git checkout" in str(checkout(tmp_path)["trouble"])
    assert "does not exist" in str(checkout(tmp_path / "x")["trouble"])
