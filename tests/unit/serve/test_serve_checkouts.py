"""Which parts of a mounted checkout's git directory a container may not write."""

from __future__ import annotations

import json
from pathlib import Path

from envgen.profile.load import load_project
from envgen.serve.launch import guard_file

FILE = """\
version: 1
name: guards
default_profile: dev
profiles:
  dev:
    mode: development
    base: {image: "localhost/none:1"}
    cuda: {arch_list: 12.1a}
    gpu: none
    sources:
      lib:
        origin: {checkout: lib}
        package: lib
        distribution: lib
        mount: /workspace/lib
        install: {requires: [setuptools]}
    services: {web: {command: [sleep, infinity]}}
"""


def volumes(root: Path) -> dict[str, bool]:
    (root / "envgen.yaml").write_text(FILE)
    profile = load_project(file=root / "envgen.yaml").project.profiles["dev"]
    path = guard_file(profile, root, root / ".envgen" / "render" / "dev")
    if path is None:
        return {}
    document = json.loads(path.read_text())
    assert list(document["services"]) == ["web"]
    return {one["target"]: one["read_only"] for one in document["services"]["web"]["volumes"]}


def test_a_checkout_without_git_needs_no_guard(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    assert volumes(tmp_path) == {}


def test_settings_of_a_clone_and_of_its_submodules(tmp_path: Path) -> None:
    for folder in ("lib/.git", "lib/.git/modules/third_party/x", "lib/.git/modules/third_party/x/modules/y"):
        (tmp_path / folder / "hooks").mkdir(parents=True)
        for name in ("config", "HEAD"):
            (tmp_path / folder / name).write_text("")
    git = "/workspace/lib/.git"
    inner = f"{git}/modules/third_party/x"
    assert volumes(tmp_path) == {
        **dict.fromkeys((git, f"{git}/modules", f"{git}/modules/third_party", inner), False),
        **dict.fromkeys((f"{inner}/modules", f"{inner}/modules/y"), False),
        **{f"{at}/{name}": True for at in (git, inner, f"{inner}/modules/y") for name in ("config", "hooks")},
    }


def test_what_is_gone_is_guarded_no_more(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / ".git").write_text("gitdir: /elsewhere\n")
    assert volumes(tmp_path) == {"/workspace/lib/.git": True}
    (tmp_path / "lib" / ".git").unlink()
    assert volumes(tmp_path) == {}
    assert not (tmp_path / ".envgen" / "render" / "dev" / "compose" / "checkouts.json").exists()


def test_a_link_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "lib" / ".git").mkdir(parents=True)
    (tmp_path / "lib" / ".git" / "config").symlink_to("/etc/passwd")
    assert volumes(tmp_path) == {"/workspace/lib/.git": False}


def test_an_engine_that_remaps_users_leaves_those_of_the_host_alone(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "envgen.yaml").write_text(FILE)
    profile = load_project(file=tmp_path / "envgen.yaml").project.profiles["dev"]
    path = guard_file(profile, tmp_path, tmp_path / ".envgen", ["web"])
    assert path is not None and json.loads(path.read_text()) == {"services": {"web": {"userns_mode": "host"}}}
    assert guard_file(profile, tmp_path, tmp_path / ".envgen") is None and not path.exists()
