"""A locked build while everything that has a name moves: the base image's tag, a branch, a pull request.

All servers are real. The base image is pulled from a registry by the build itself; both sources come from a git server
that the build's containers reach at the address of Docker's own bridge.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from image_content import differing
from lock_servers import git_daemon, registry
from projects import LEAN, Project, docker

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

NAME = "envgentestmoving"
SOURCE = """\
      {name}:
        origin: {{git: "{address}/{name}.git", {ref}}}
        package: {name}
        distribution: {name}
        mount: /workspace/{name}
        install: {{requires: ["setuptools<81", wheel]}}
"""
TEXT = """\
profiles:
  prod:
    mode: production
    base: {{image: "{base}"}}
    apt: {{runtime: [tree]}}
    pip: {{tools: [sniffio]}}
    sources:
"""
SEE = "import branchy, pulled; print(branchy.MARK, pulled.MARK)"


def git(folder: Path, *words: str) -> str:
    identity = {f"GIT_{who}_{what}": "t@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {**os.environ, **identity, "GIT_CONFIG_GLOBAL": os.devnull}
    done = subprocess.run(["git", *words], cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def push_source(work: Path, bare: Path, name: str, ref: str, mark: str) -> str:
    """A package whose MARK is ``mark``, force-pushed to ``ref`` as a commit that knows nothing of those before."""
    work.mkdir()
    (work / name).mkdir()
    (work / name / "__init__.py").write_text(f"MARK = {mark!r}\n")
    (work / "pyproject.toml").write_text(
        f'[build-system]\nrequires = ["setuptools"]\n[project]\nname = "{name}"\nversion = "1.0"\n'
        f'[tool.setuptools]\npackages = ["{name}"]\n'
    )
    git(work, "init", "-q", "-b", "main")
    git(work, "add", "-A")
    git(work, "commit", "-qm", mark)
    git(work, "push", "-qf", str(bare), f"HEAD:{ref}")
    return git(work, "rev-parse", "HEAD")


class World:
    """What the project refers to, all of it movable."""

    def __init__(self, folder: Path, base: str, project: Project) -> None:
        self.folder = folder
        self.salt = os.urandom(8).hex()
        self.base = base
        self.project = project

    def move(self, mark: str) -> dict[str, str]:
        """Point tag, branch and pull request at something new; gives the commits."""
        lean = LEAN.replace("SALT", self.salt)
        docker("build", "-q", "-t", self.base, "-", stdin=f"{lean}LABEL salt={mark}\n", timeout=300)
        docker("push", "-q", self.base, timeout=300)
        found = {}
        for name, ref in (("branchy", "refs/heads/main"), ("pulled", "refs/pull/31740/head")):
            bare = self.folder / f"{name}.git"
            if not bare.exists():
                bare.mkdir()
                git(bare, "init", "-q", "--bare", "-b", "main")
            found[name] = push_source(self.folder / f"{name}-{mark}", bare, name, ref, mark)
        return found


@pytest.fixture(scope="module")
def world(make_project: Callable[..., Project], tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("moving")
    bridge = docker("network", "inspect", "bridge", "-f", "{{(index .IPAM.Config 0).Gateway}}")
    with registry(folder / "registry") as host, git_daemon(folder, bridge) as address:
        base = f"{host}/{NAME}:1"
        text = TEXT.format(base=base)
        text += SOURCE.format(name="branchy", address=address, ref="ref: main")
        text += SOURCE.format(name="pulled", address=address, ref="ref: refs/pull/31740/head")
        yield World(folder, base, make_project(NAME, text))
    docker("image", "rm", "-f", base, check=False)


def test_what_moves_afterwards_does_not_change_a_build(world: World, tmp_path: Path) -> None:
    project, lock = world.project, world.project.root / "envgen.lock"
    first = world.move("one")
    project.envgen("lock")
    locked = lock.read_text()
    assert "resolved: registry" in locked
    assert all(commit in locked for commit in first.values())
    docker("image", "rm", "-f", world.base)  # the build itself has to fetch it
    built = project.envgen("build", "--json").json["image_id"]
    assert docker("run", "--rm", f"{NAME}:prod", "python3", "-c", SEE) == "one one"

    second = world.move("two")
    again = project.envgen("build", "--no-cache", "--json").json["image_id"]
    assert built == again or differing(built, again, tmp_path) == []
    project.envgen("lock", "--check")
    project.envgen("lock")
    assert lock.read_text() == locked

    # The tag here is the new one: pushing it has left it so.
    changes = project.envgen("lock", "--upgrade", "--json").json["changes"]
    moved = {change["name"]: change["after"] for change in changes}
    assert moved[f"image {world.base}"].startswith("sha256:")
    assert sorted(moved[name] for name in moved if name.startswith("git ")) == sorted(second.values())
    assert project.envgen("status", "--json").json["image"]["changed"]
    project.envgen("render")
    dockerfile = (project.root / "Dockerfile").read_text()
    assert f"FROM {world.base}@{moved[f'image {world.base}']}" in dockerfile
    assert all(commit in dockerfile for commit in second.values())
    assert not any(commit in dockerfile for commit in first.values())
