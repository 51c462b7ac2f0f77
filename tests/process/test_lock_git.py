"""Refs from a real git server: branches, annotated tags, pull requests, what moved and what is gone."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from lock_servers import failing, git_daemon

from envgen.app.session import Session
from envgen.app.upgrade.paper import Draft, ask_for
from envgen.errors import LockError
from envgen.lock.model import Lock
from envgen.lock.servers import resolve_git


class Repositories:
    """Bare repositories below one folder, served by ``address``."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder = folder
        self.address = address

    def url(self, name: str) -> str:
        return f"{self.address}/{name}.git"

    def git(self, name: str, *words: str, stdin: str = "") -> str:
        identity = {f"GIT_{who}_{what}": "t@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        done = subprocess.run(
            ["git", *words], cwd=self.folder / f"{name}.git", input=stdin, capture_output=True, text=True, check=True,
            env={**os.environ, **identity, "GIT_CONFIG_GLOBAL": "/dev/null"},
        )  # fmt: skip
        return done.stdout.strip()

    def make(self, name: str) -> None:
        (self.folder / f"{name}.git").mkdir(parents=True)
        self.git(name, "init", "-q", "--bare", "-b", "main")

    def commit(
        self, name: str, text: str, modules: dict[str, tuple[str, str]] | None = None, file: str = "README"
    ) -> str:
        """A commit with one file and submodules (path -> address, commit); gives its hash."""
        blob = self.git(name, "hash-object", "-w", "--stdin", stdin=text)
        tree = {file: f"100644 blob {blob}"}
        if modules:
            config = "".join(f'[submodule "{p}"]\n\tpath = {p}\n\turl = {a}\n' for p, (a, _) in modules.items())
            inner = self.git(name, "hash-object", "-w", "--stdin", stdin=config)
            tree[".gitmodules"] = f"100644 blob {inner}"
            tree |= {path: f"160000 commit {commit}" for path, (_, commit) in modules.items()}
        self.git(name, "read-tree", "--empty")
        listed = "".join(f"{head.replace(' blob', '').replace(' commit', '')}\t{path}\n" for path, head in tree.items())
        self.git(name, "update-index", "--index-info", stdin=listed)
        made = self.git(name, "write-tree", "--missing-ok")
        return self.git(name, "commit-tree", "-m", text, made)

    def point(self, name: str, ref: str, commit: str) -> None:
        self.git(name, "update-ref", ref, commit)


@pytest.fixture
def repositories(tmp_path: Path) -> Iterator[Repositories]:
    with git_daemon(tmp_path) as address:
        found = Repositories(tmp_path, address)
        found.make("vllm")
        yield found


def test_branch_annotated_tag_pull_request_and_commit(repositories: Repositories) -> None:
    first, second, third = (repositories.commit("vllm", text) for text in ("one", "two", "three"))
    repositories.point("vllm", "refs/heads/main", first)
    repositories.git("vllm", "tag", "-a", "-m", "release", "v0.14.0", second)
    repositories.point("vllm", "refs/pull/31740/head", third)
    url = repositories.url("vllm")
    asked = [("main", first, "branch"), ("v0.14.0", second, "tag"), ("refs/pull/31740/head", third, "pull")]
    for ref, commit, kind in [*asked, (second, second, "commit")]:
        found = resolve_git(url, ref)
        assert (found.commit, found.kind) == (commit, kind)
    assert repositories.git("vllm", "rev-parse", "v0.14.0") != second  # the tag has an object of its own


def test_a_tag_wins_over_a_branch_of_its_name(repositories: Repositories) -> None:
    first, second = (repositories.commit("vllm", text) for text in ("one", "two"))
    repositories.point("vllm", "refs/heads/v1", first)
    repositories.git("vllm", "tag", "v1", second)
    assert resolve_git(repositories.url("vllm"), "v1").commit == second


def test_a_submodule_from_elsewhere_is_left_out_of_a_build(repositories: Repositories, tmp_path: Path) -> None:
    """A fork's submodule may name a commit that only the fork of the submodule has."""
    repositories.make("cutlass-fork")
    fork = repositories.commit("cutlass-fork", "fork")
    repositories.point("cutlass-fork", "refs/heads/main", fork)
    repositories.make("spdlog")
    spdlog = repositories.commit("spdlog", "spdlog")
    repositories.point("spdlog", "refs/heads/main", spdlog)
    modules = {"3rdparty/cutlass": ("../none.git", "1" * 40), "3rdparty/spdlog": ("../spdlog.git", spdlog)}
    top = repositories.commit("vllm", "top", modules)
    repositories.point("vllm", "refs/heads/main", top)
    out = tmp_path / "out"
    done = fetch(tmp_path, "--without", "3rdparty/cutlass", repositories.url("vllm"), top, str(out))
    assert done.returncode == 0, done.stderr
    assert (out / "3rdparty/spdlog/README").read_text() == "spdlog"
    assert list((out / "3rdparty/cutlass").iterdir()) == []
    done = fetch(tmp_path, repositories.url("cutlass-fork"), fork, str(out / "3rdparty/cutlass"))
    assert done.returncode == 0, done.stderr
    assert (out / "3rdparty/cutlass/README").read_text() == "fork"
    done = fetch(tmp_path, "--without", "3rdparty/none", repositories.url("vllm"), top, str(tmp_path / "o"))
    assert done.returncode == 1 and "has no submodule 3rdparty/none" in done.stderr


def test_a_vanished_ref_and_repository(repositories: Repositories) -> None:
    with pytest.raises(LockError, match="no such branch, tag or pull request"):
        resolve_git(repositories.url("vllm"), "gone")
    with pytest.raises(LockError, match="40 digits"):
        resolve_git(repositories.url("vllm"), "abcdef12")
    with pytest.raises(LockError, match=r"main of git://"):
        resolve_git(repositories.url("nothing"), "main")


def test_passwords_are_never_shown(tmp_path: Path) -> None:
    with failing((401, {"WWW_Authenticate": "Basic realm=x"}, b"")) as server:
        with pytest.raises(LockError) as caught:
            resolve_git(f"http://alice:hunter2@{server.host}/x.git", "main")
        assert "hunter2" not in str(caught.value)
        assert server.host in str(caught.value)


def test_a_server_that_hangs_is_given_up() -> None:
    with (
        failing(None) as server,
        pytest.raises(LockError, match=r"did not answer within 0\.5 s"),
    ):
        resolve_git(f"http://{server.host}/x.git", "main", timeout=0.5)


SCRIPT = Path(__file__).parents[2] / "docker" / "build" / "fetch-git"


def fetch(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", str(SCRIPT), *words], cwd=folder, capture_output=True, text=True, check=False)


def test_a_ref_of_any_kind_comes_alone_with_its_tag_and_its_submodules(
    repositories: Repositories, tmp_path: Path
) -> None:
    for name in ("inner", "outer"):
        repositories.make(name)
    inner = repositories.commit("inner", "inner")
    repositories.point("inner", "refs/heads/main", inner)
    outer = repositories.commit("outer", "outer", {"deps/inner": ("../inner.git", inner)})
    repositories.point("outer", "refs/heads/main", outer)
    first = repositories.commit("vllm", "one", {"3rdparty/outer": ("../outer.git", outer)})
    top = repositories.git("vllm", "commit-tree", "-p", first, "-m", "two", f"{first}^{{tree}}")
    for ref in ("refs/heads/main", "refs/heads/feature/x", "refs/pull/31740/head"):
        repositories.point("vllm", ref, top)
    repositories.git("vllm", "tag", "-am", "release", "v1", top)
    for number, ref in enumerate(("main", "v1", "feature/x", "refs/pull/31740/head", "refs/heads/main", top)):
        out = tmp_path / str(number)
        done = fetch(tmp_path, repositories.url("vllm"), ref, str(out))
        assert done.returncode == 0 and "no shallow fetch" not in done.stderr, done.stderr
        assert ours(out, "rev-parse", "HEAD") == top and top in done.stdout + done.stderr
        assert ours(out, "rev-list", "--count", "HEAD") == "1"
        assert (out / "3rdparty/outer/deps/inner/README").read_text() == "inner"
        assert ref != "v1" or ours(out, "describe") == "v1"  # versions are made from it
    done = fetch(tmp_path, repositories.url("vllm"), first[:12], str(tmp_path / "short"))  # in the whole history
    assert done.returncode == 0 and ours(tmp_path / "short", "rev-parse", "HEAD") == first
    done = fetch(tmp_path, repositories.url("vllm"), "gone", str(tmp_path / "none"))
    assert done.returncode == 1 and f"fetch-git: {repositories.url('vllm')} has no gone" in done.stderr


def ours(folder: Path, *words: str) -> str:
    """What git says of a folder that was fetched."""
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("ref", ["refs/heads/main", "refs/tags/v1.0", "refs/pull/31740/head"])
def test_a_moved_ref_does_not_change_what_a_build_fetches(repositories: Repositories, tmp_path: Path, ref: str) -> None:
    locked = repositories.commit("vllm", "locked")
    repositories.point("vllm", ref, locked)
    newer = repositories.git("vllm", "commit-tree", "-p", locked, "-m", "new", f"{locked}^{{tree}}")
    repositories.point("vllm", ref, newer)
    done = fetch(tmp_path, repositories.url("vllm"), locked, str(tmp_path / "out"), ref)
    assert done.returncode == 0, done.stderr
    assert ours(tmp_path / "out", "rev-parse", "HEAD") == locked
    assert ours(tmp_path / "out", "tag") == ("v1.0" if "tags" in ref else "")


def test_a_build_says_when_the_locked_commit_is_gone(repositories: Repositories, tmp_path: Path) -> None:
    repositories.point("vllm", "refs/heads/main", repositories.commit("vllm", "one"))
    done = fetch(tmp_path, repositories.url("vllm"), "1" * 40, str(tmp_path / "out"), "refs/heads/main")
    assert done.returncode == 1
    assert f"has no {'1' * 40} (any more); refs/heads/main may have been force-pushed" in done.stderr


CMAKE = """\
set(CUTLASS_REVISION "v4.4.2" CACHE STRING "a tag")
set(_UPSTREAM "https://git.example.com/qutlass.git")
FetchContent_Declare(cutlass
  GIT_REPOSITORY https://git.example.com/NVIDIA/Cutlass
  # in step with the line above
  GIT_TAG ${CUTLASS_REVISION}
  GIT_SHALLOW TRUE)
FetchContent_Declare(without GIT_REPOSITORY https://git.example.com/without.git)
FetchContent_Declare(qutlass GIT_REPOSITORY "${_UPSTREAM}" GIT_TAG "830d2c4")
"""
SOURCE = """\
version: 1
name: from-source
profiles:
  source:
    mode: production
    cuda: {arch_list: 12.1a}
    base: {image: "base:1"}
    sources:
      vllm:
        package: vllm
        distribution: vllm
        mount: /workspace/vllm
        origin: {git: "URL", ref: v0.14.0}
        install:
          env: {PRETEND: 0.14.0, OTHER: x}
          inputs:
            cutlass: {git: "https://git.example.com/nvidia/cutlass.git", ref: v4.2.1, variable: A}
            qutlass: {git: "https://git.example.com/qutlass", ref: 830d2c4, variable: B}
            flashmla: {git: "https://git.example.com/flashmla", ref: 46d64a8, variable: C}
"""


def test_an_upgrade_to_a_tag_takes_what_its_cmake_files_fetch(
    repositories: Repositories, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    repositories.point("vllm", "refs/tags/v0.15.0", repositories.commit("vllm", CMAKE, file="CMakeLists.txt"))
    text = SOURCE.replace("URL", repositories.url("vllm"))
    (tmp_path / "envgen.yaml").write_text(text)
    plan = Draft(Session(tmp_path / "envgen.yaml"), Lock(), text)
    ask_for(plan, "vllm", "@", "v0.15.0")
    changed = (("v0.14.0", "v0.15.0"), ("PRETEND: 0.14.0", "PRETEND: 0.15.0"), ("v4.2.1", "v4.4.2"))
    for before, after in changed:
        text = text.replace(before, after)
    assert plan.text == text
    assert "CMake files of v0.15.0: sources.vllm.install.inputs.flashmla" in capfd.readouterr().err
