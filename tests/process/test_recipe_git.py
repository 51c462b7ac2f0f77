"""A recipe in a git repository: pinned to its commit, and nothing of it runs."""

from __future__ import annotations

import shutil
from pathlib import Path

from projects import Project

from envgen.engine.git import git

TOP = Path(__file__).parents[2]
RECIPE = """\
recipe_version: "1"
model: org/Model
container: vllm-node
defaults: {port: 8000}
command: vllm serve org/Model --port {port} --max-num-seqs 4
"""


def test_a_recipe_of_a_repository(tmp_path: Path) -> None:
    there, root = tmp_path / "theirs", tmp_path / "project"
    (there / "recipes").mkdir(parents=True)
    root.mkdir()
    (there / "recipes" / "mine.yaml").write_text(RECIPE)
    (there / "recipes" / "link.yaml").symlink_to("/etc/hostname")
    for words in (["init", "-q", "-b", "main"], ["config", "uploadpack.allowFilter", "true"],
                  ["add", "-A"], ["commit", "-qm", "one"], ["tag", "v1"]):  # fmt: skip
        git(words, cwd=there)
    commit = git(["rev-parse", "HEAD"], cwd=there).text
    (there / "recipes" / "mine.yaml").write_text(RECIPE.replace("seqs 4", "seqs 8"))
    git(["commit", "-qam", "two"], cwd=there)
    shutil.copy(TOP / "envgen.yaml", root)
    made, url = Project(root, "mxfp4"), f"file://{there}"
    own = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    listed = made.envgen("recipe", "list", "--from", url, "--json", env=own).json
    assert [one["name"] for one in listed["recipes"]] == ["mine"] and listed["commit"] != commit
    made.envgen("recipe", "add", "mine", "--from", url, "--ref", "v1", "--yes", env=own)
    text = (root / "envgen.yaml").read_text()
    assert f"# Source: {url} recipes/mine.yaml at {commit}" in text and "max-num-seqs: 4" in text
    found = made.envgen("recipe", "add", "none", "--from", url, "--yes", env=own, code=2)
    assert "has no recipe 'none'" in found.err
    found = made.envgen("recipe", "list", "--from", "file:///nowhere", env=own, code=2)
    assert "git fetch failed" in found.err
    found = made.envgen("recipe", "list", "--from", "ext::sh -c id", env=own, code=2)
    assert "is neither a folder nor" in found.err
