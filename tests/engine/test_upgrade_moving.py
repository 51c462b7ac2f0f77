"""An upgrade of what has a name: another tag of the base image, a base that its registry has moved, a ref of a source.

All servers are real; the source is a small package whose CMake file fetches another repository, as vLLM's do.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from lock_servers import git_daemon, registry
from projects import LEAN, Project, docker
from test_lock_moving import git
from toy_index import RELEASES, VLLM, toy_project

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

NAME = "envgentestupgrademoving"
KEEP = ("--yes", "--keep", "--json")
SERVER = next(text for name, version, _, text in RELEASES if (name, version) == ("toyserver", "1.0"))


def push(base: str, mark: str) -> None:
    docker("build", "-q", "-t", base, "-", stdin=f"{LEAN}LABEL mark={mark}\n", timeout=300)
    docker("push", "-q", base, timeout=300)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[str]:
    with registry(tmp_path / "registry") as address:
        yield address


def served(project: Project) -> str:
    """The mark of the base that what serves was built on."""
    container = docker("ps", "-q", "--filter", f"name={project.name}-prod-serve")
    return docker("inspect", "-f", '{{index .Config.Labels "mark"}}', container)


def test_another_base_and_one_that_moved(host: str, make_project: Callable[..., Project], tmp_path: Path) -> None:
    base = f"{host}/{NAME}"
    push(f"{base}:1", "one")
    push(f"{base}:2", "two")
    with toy_project(make_project, NAME, tmp_path / "index", f"{base}:1") as project:
        project.envgen("lock")
        project.envgen("render")
        project.envgen("up", "serve", "--yes")
        file = project.root / "envgen.yaml"
        text, locked = file.read_text(), (project.root / "envgen.lock").read_text()

        docker("image", "rm", "-f", f"{base}:2")
        refused = project.envgen("upgrade", "base==2", *KEEP, code=7)
        subprocess.run(refused.json["hint"].split(), check=True, capture_output=True)
        kept = project.envgen("upgrade", "base==2", *KEEP)
        assert kept.json["kept"] and served(project) == "two", kept.err
        assert file.read_text() == text.replace(f"{base}:1", f"{base}:2")
        project.envgen("lock", "--check")
        project.envgen("upgrade", "--back")
        assert served(project) == "one"
        assert (file.read_text(), (project.root / "envgen.lock").read_text()) == (text, locked)

        assert "its registry has another image" not in project.envgen("upgrade", code=None).out
        push(f"{base}:1", "three")  # the engine's tag is the new one, too; the old one has its digest
        assert f"base {base}:1: its registry has another image" in project.envgen("upgrade", code=1).out
        assert project.envgen("up", "serve", "--json").json["already_running"]
        moved = project.envgen("upgrade", "base==1", *KEEP)
        assert moved.json["kept"] and served(project) == "three", moved.err
        assert file.read_text() == text
        project.envgen("upgrade", "--back")
        assert served(project) == "one"
        docker("image", "rm", "-f", f"{base}:1", f"{base}:2", check=False)


PYPROJECT = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "toyserver"
version = "VERSION"
dependencies = ["toyspeed<2", "toyanswer<2", "toystart<2"]
[tool.setuptools]
py-modules = ["toyserver"]
[tool.setuptools.packages.find]
include = ["vllm*"]
namespaces = true
"""
CMAKE = """\
set(EXTRA_REVISION "FETCHED" CACHE STRING "")
FetchContent_Declare(extra
  GIT_REPOSITORY ADDRESS/Extra.git
  GIT_TAG ${EXTRA_REVISION})
"""
ORIGIN = """\
        origin: {git: "ADDRESS/toy", ref: v1.0}
        install:
          requires: ["setuptools<81", wheel]
          dependencies: true
          env: {TOY_VERSION: "1.0"}
          inputs:
            extra: {git: "ADDRESS/extra", ref: e1, variable: EXTRA_SRC_DIR}
            other: {git: "ADDRESS/extra", ref: e1, variable: OTHER_SRC_DIR}
"""


def release(toy: Path, version: str, fetched: str, address: str) -> None:
    """Commit and tag the source as it is at ``version``."""
    server = SERVER.replace("toyserver 1.0", f"toyserver {version}")
    parser = server[server.find("def make_arg_parser") : server.find("def main")]
    held = {
        **VLLM,
        "vllm/parser.py": parser,
        "toyserver.py": server,
        "pyproject.toml": PYPROJECT.replace("VERSION", version),
        "CMakeLists.txt": CMAKE.replace("FETCHED", fetched).replace("ADDRESS", address),
    }
    for path, content in held.items():
        (toy / path).parent.mkdir(parents=True, exist_ok=True)
        (toy / path).write_text(content)
    git(toy, "add", "-A")
    git(toy, "commit", "-qm", version)
    git(toy, "tag", f"v{version}")


def test_a_ref_of_a_source_from_git(make_project: Callable[..., Project], tmp_path: Path) -> None:
    """What its CMake files fetch at the new ref goes with it, and the variable that says the version."""
    bridge = docker("network", "inspect", "bridge", "-f", "{{(index .IPAM.Config 0).Gateway}}")
    for name in ("toy", "extra"):
        (tmp_path / "git" / name).mkdir(parents=True)
        git(tmp_path / "git" / name, "init", "-q", "-b", "main")
    extra, toy = tmp_path / "git/extra", tmp_path / "git/toy"
    for number in ("1", "2"):
        (extra / "number").write_text(number)
        git(extra, "add", "-A")
        git(extra, "commit", "-qm", number)
        git(extra, "tag", f"e{number}")
    with git_daemon(tmp_path / "git", bridge) as address:
        release(toy, "1.0", "e1", address)
        release(toy, "1.1", "e2", address)
        with toy_project(make_project, NAME, tmp_path / "index") as project:
            file = project.root / "envgen.yaml"
            before, _, rest = file.read_text().partition("        origin:")
            text = before + ORIGIN.replace("ADDRESS", address) + rest.partition("true}\n")[2]
            file.write_text(text)
            project.envgen("lock")
            project.envgen("render")
            project.envgen("up", "serve", "--yes")
            kept = project.envgen("upgrade", "toy@v1.1", *KEEP)
            assert kept.json["kept"], kept.err
            source = yaml.safe_load(file.read_text())["profiles"]["prod"]["sources"]["toy"]
            assert source["origin"]["ref"] == "v1.1" and source["install"]["env"] == {"TOY_VERSION": "1.1"}
            refs = {name: one["ref"] for name, one in source["install"]["inputs"].items()}
            assert refs == {"extra": "e2", "other": "e2"}
            project.envgen("lock", "--check")
            project.envgen("upgrade", "--back")
            assert file.read_text() == text
