"""Whose a profile's name is: what is refused, and what is free."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envgen.app.session import Session
from envgen.deployment import Deployment
from envgen.engine.owner import WORKING_DIR
from envgen.engine.values import Container, EngineInfo
from envgen.errors import ProjectError, RefusedError
from envgen.profile.load import as_name, load_project
from envgen.profile.model import Profile

FILE = """\
version: 1
name: lab
profiles:
  dev:
    mode: development
    base: {image: base:1}
    cuda: {arch_list: "12.1a"}
    gpu: none
    caches: {jit: {path: /jit}, flashinfer: {path: /fi}}
    services: {web: {command: [web]}}
"""


class Containers:
    """An engine with containers."""

    def __init__(self, *containers: Container) -> None:
        self.found = containers

    def info(self) -> EngineInfo:
        return EngineInfo("28", "1.51", "x86_64", (), (), 0, 0, "unix:///run/docker.sock")

    def containers(self, project: str, all: bool) -> tuple[Container, ...]:
        return tuple(one for one in self.found if one.labels["com.docker.compose.project"] == project)


def container(root: Path, project: str = "lab-dev") -> Container:
    labels = {"com.docker.compose.project": project, WORKING_DIR: f"{root}/compose"}
    return Container("c", f"{project}-web-1", "web", "running", "", 0, "", labels, {}, (), (), "")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    found = tmp_path / "here"
    found.mkdir()
    (found / "envgen.yaml").write_text(FILE)
    return found


@pytest.fixture
def profile(root: Path) -> Profile:
    return load_project(file=root / "envgen.yaml", environ={}).project.profiles["dev"]


def on(engine: Any, profile: Profile, root: Path) -> Deployment:
    return Deployment(profile, root).with_cached(engine=engine)


def test_a_name_is_the_folders_that_has_containers(root: Path, profile: Profile) -> None:
    link = root.with_name("link")
    link.symlink_to(root)
    for engine in (Containers(), Containers(container(root)), Containers(container(link))):
        on(engine, profile, root).require_name()
    there = root.with_name("there")
    there.mkdir()
    assert on(Containers(container(there)), profile, root).other_folder() == there


def test_another_folder_is_refused_with_both_named(root: Path, profile: Profile) -> None:
    there = root.with_name("there")
    there.mkdir()
    engine: Any = Containers(container(there))
    with pytest.raises(RefusedError) as refused:
        on(engine, profile, root).require_name()
    (problem,) = refused.value.problems
    assert problem.message == f"lab-dev belongs to {there}; this is {root}"
    assert "`name: lab-2`" in problem.hint and problem.hint.endswith(": docker compose -p lab-dev down")
    with pytest.raises(RefusedError, match=r"spark-2: lab-dev belongs to "):
        replace(on(engine, profile, root), node="spark-2").with_cached(engine=engine).require_name()


def test_a_folder_that_was_moved_keeps_its_containers(
    root: Path, profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = root.with_name("there")
    engine: Any = Containers(container(there))
    on(engine, profile, root).require_name()
    assert [one.name for one in on(engine, profile, root).containers(all=True)] == ["lab-dev-web-1"]

    def refuse(path: object) -> None:
        raise PermissionError(path)  # the folder of another user: it may be there

    with monkeypatch.context() as patched:
        patched.setattr(os, "lstat", refuse)
        assert on(engine, profile, root).other_folder() == there
    engine.info = lambda: replace(Containers.info(engine), endpoint="ssh://spark-1")  # its folders can't be seen
    with pytest.raises(RefusedError):
        on(engine, profile, root).require_name()


def test_committed_files_have_neither_the_local_name_nor_variables(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "envgen.local.yaml").write_text("name: lab-2\n")
    root.with_name("there").mkdir()
    session = Session(root / "envgen.yaml")
    found = session.loaded().project
    own = found.profiles["dev"]
    assert (found.name, own.compose_name, own.image_name) == ("lab-2", "lab-2-dev", "lab-2:dev")
    on(Containers(container(root.with_name("there"))), own, root).require_name()
    assert session.loaded(local=False).project.profiles["dev"].compose_name == "lab-dev"
    (root / "envgen.local.yaml").unlink()
    monkeypatch.setenv("ENVGEN_BUILD__MAX_JOBS", "7")
    session = Session(root / "envgen.yaml")
    jobs = [session.loaded(local=local).project.profiles["dev"].build.max_jobs.count for local in (True, False)]
    assert jobs == [7, None]


@pytest.mark.parametrize("text", ["Bob", "a--b", "-a", "[a]", "a/b", '""'])
def test_a_name_that_docker_would_refuse_is_refused(root: Path, text: str) -> None:
    (root / "envgen.local.yaml").write_text(f"name: {text}\n")
    with pytest.raises(ProjectError, match=r"name: (.* is not accepted here|expected text)"):
        load_project(file=root / "envgen.yaml", environ={})


def test_a_local_file_leaves_the_places_of_the_shared_one(root: Path) -> None:
    (root / "envgen.yaml").write_text(FILE.replace("name: lab\n", "name: lab\ndefault_profile: nowhere\n"))
    (root / "envgen.local.yaml").write_text("name: bob\n")
    with pytest.raises(ProjectError, match="profile 'nowhere' does not exist") as refused:
        load_project(file=root / "envgen.yaml", environ={})
    place = refused.value.problems[0].place
    assert place is not None and place.line == 3


def test_any_folder_gives_a_name() -> None:
    assert as_name("My Fix #12!") == "my-fix-12"
    assert as_name("日本") == as_name("日本") and len(as_name("日本")) == 8
    assert len(as_name("x" * 300)) == 40
