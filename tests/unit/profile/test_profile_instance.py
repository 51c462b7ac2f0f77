"""The name of a copy: from envgen.local.yaml, or from the git worktree that the project is in."""

from __future__ import annotations

from pathlib import Path

import pytest

from envgen.errors import ProjectError
from envgen.profile.load import as_instance, load_project, of_worktree
from envgen.profile.model import Profile

FILE = """\
version: 1
name: lab
defaults: {base: {image: base:1}, cuda: {arch_list: "12.1a"}, mode: production}
profiles:
  dev: {}
  tagged: {image: "example.com:5000/x/lab:9", dockerfile: Dockerfile.tagged}
  bare: {image: "example.com:5000/x/lab", dockerfile: Dockerfile.bare}
"""


def project(root: Path, local: str = "", *, layers: bool = True) -> dict[str, Profile]:
    root.mkdir(exist_ok=True)
    (root / "envgen.yaml").write_text(FILE)
    if local:
        (root / "envgen.local.yaml").write_text(local)
    found = load_project(file=root / "envgen.yaml", environ={}, local=layers).project.profiles
    return {name: found[name] for name in found}


def linked(folder: Path, name: str) -> Path:
    """A linked worktree, as git leaves one."""
    git_dir = folder / "main" / ".git" / "worktrees" / name
    git_dir.mkdir(parents=True)
    (git_dir / "commondir").write_text("../..\n")
    tree = folder / "tree"
    (tree / "examples").mkdir(parents=True)
    (tree / ".git").write_text(f"gitdir: {git_dir}\n")
    return tree


def test_a_linked_worktree_has_the_name_that_git_gives_it(tmp_path: Path) -> None:
    tree = linked(tmp_path, "Fix_SM121")
    assert of_worktree(tree) == of_worktree(tree / "examples") == "fix-sm121"
    assert of_worktree(tmp_path / "main") == "" and of_worktree(tmp_path) == ""
    assert project(tree)["dev"].compose_name == "lab-dev--fix-sm121"
    assert project(tree, layers=False)["dev"].compose_name == "lab-dev"  # what is committed is the same everywhere


def test_a_submodule_or_a_broken_file_is_no_worktree(tmp_path: Path) -> None:
    (tmp_path / "modules" / "sub").mkdir(parents=True)
    for number, text in enumerate(("gitdir: ../modules/sub\n", "", "gitdir:", "gitdir: ../nowhere", "\0")):
        folder = tmp_path / f"p{number}"
        folder.mkdir()
        (folder / ".git").write_text(text)
        assert of_worktree(folder) == "", text


def test_the_local_file_names_a_copy_or_takes_the_name_away(tmp_path: Path) -> None:
    assert project(tmp_path / "a", "instance: bob\n")["dev"].image_name == "lab:dev--bob"
    tree = linked(tmp_path, "fix")
    assert project(tree, "instance: bob\n")["dev"].instance == "bob"
    assert project(tree, "instance: ''\n")["dev"].compose_name == "lab-dev"


def test_every_image_of_a_copy_has_a_tag_of_its_own(tmp_path: Path) -> None:
    found = project(tmp_path / "a", "instance: bob\n")
    assert found["tagged"].image_name == "example.com:5000/x/lab:9--bob"
    assert found["bare"].image_name == "example.com:5000/x/lab:bob"


@pytest.mark.parametrize("text", ["Bob", "a--b", "-a", "[a]", "a/b"])
def test_a_name_that_docker_would_refuse_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ProjectError, match=r"instance: (.* is not accepted here|expected text)"):
        project(tmp_path / "a", f"instance: {text}\n")


def test_the_shared_file_names_no_copy(tmp_path: Path) -> None:
    (tmp_path / "envgen.yaml").write_text(FILE + "instance: bob\n")
    with pytest.raises(ProjectError, match=r"envgen\.local\.yaml"):
        load_project(file=tmp_path / "envgen.yaml")


def test_any_folder_gives_a_name() -> None:
    assert as_instance("My Fix #12!") == "my-fix-12"
    assert as_instance("日本") == as_instance("日本") and len(as_instance("日本")) == 8
    assert len(as_instance("x" * 300)) == 40


def test_a_local_file_leaves_the_places_of_the_shared_one(tmp_path: Path) -> None:
    (tmp_path / "envgen.yaml").write_text(FILE.replace("name: lab\n", "name: lab\ndefault_profile: nowhere\n"))
    (tmp_path / "envgen.local.yaml").write_text("instance: bob\n")
    with pytest.raises(ProjectError, match="there is no profile 'nowhere'") as refused:
        load_project(file=tmp_path / "envgen.yaml", environ={})
    place = refused.value.problems[0].place
    assert place is not None and place.line == 3
