"""Who owns a profile's name: what is refused, what is free, and that of two at once one gets it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envgen.deployment import Deployment
from envgen.engine.owner import FOLDER, USER, WORKING_DIR, Owner, this_owner
from envgen.engine.values import Container, EngineInfo, Image
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
CLAIM = "lab-dev-owner"


class Volumes:
    """An engine with volumes and containers; as a real one, it makes a volume of a name once."""

    def __init__(self, *containers: Container, images: tuple[str, ...] = ()) -> None:
        self.found = containers
        self.images = images
        self.labels: dict[str, Mapping[str, str]] = {}

    def info(self) -> EngineInfo:
        return EngineInfo("28", "1.51", "x86_64", (), (), "", 0, 0, "unix:///run/docker.sock")

    def containers(self, project: str, all: bool) -> tuple[Container, ...]:
        return tuple(one for one in self.found if one.labels["com.docker.compose.project"] == project)

    def image(self, name: str) -> Image | None:
        return Image(name, {}, "", 0, "", (), {}) if name in self.images else None

    def volume_labels(self, name: str) -> Mapping[str, str] | None:
        return self.labels.get(name)

    def create_volume(self, name: str, labels: Mapping[str, str]) -> None:
        self.labels.setdefault(name, labels)

    def remove_volume(self, name: str) -> None:
        self.labels.pop(name, None)


def container(root: Path, project: str = "lab-dev") -> Container:
    labels = {"com.docker.compose.project": project, WORKING_DIR: f"{root}/compose"}
    return Container("c", f"{project}-web-1", "web", "running", "", 0, "", labels, {}, (), (), "")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("SUDO_UID", raising=False)
    found = tmp_path / "here"
    found.mkdir()
    (found / "envgen.yaml").write_text(FILE)
    return found


@pytest.fixture
def profile(root: Path) -> Profile:
    return load_project(file=root / "envgen.yaml", environ={}).project.profiles["dev"]


def by(folder: Path, uid: str = str(os.getuid())) -> dict[str, str]:
    return {FOLDER: str(folder), USER: f"{uid} bob"}


def on(engine: Any, profile: Profile, root: Path) -> Deployment:
    return Deployment(profile, root).knowing(engine=engine)


def other(engine: Any, profile: Profile, root: Path) -> Owner | None:
    return on(engine, profile, root).other_owner()


def test_a_free_name_becomes_ours_and_stays_it(root: Path, profile: Profile) -> None:
    engine: Any = Volumes()
    assert other(engine, profile, root) is None
    on(engine, profile, root).claim_name()
    on(engine, profile, root).claim_name()
    assert engine.labels[CLAIM][FOLDER] == str(root) and engine.labels[CLAIM][USER].split()[0] == str(os.getuid())


def test_what_holds_a_name(root: Path, profile: Profile) -> None:
    there = root.with_name("there")
    there.mkdir()
    engine: Any = Volumes(container(there))
    assert str(other(engine, profile, root)) == str(there)  # plain Compose started it: its own label
    engine = Volumes()
    engine.labels[CLAIM] = by(there)
    assert other(engine, profile, root) is None  # nothing is behind it
    engine.images = ("lab:dev",)
    assert other(engine, profile, root) == Owner(str(there), str(os.getuid()), "bob")
    there.rmdir()
    assert other(engine, profile, root) is None  # its folder is gone, and nothing runs
    engine.info = lambda: replace(Volumes.info(engine), endpoint="ssh://spark-1")
    assert other(engine, profile, root) is not None  # a remote engine's folders can't be seen
    engine = Volumes(container(root))
    assert other(engine, profile, root) is None


def test_a_folder_is_one_whatever_link_leads_there(root: Path, profile: Profile) -> None:
    link = root.with_name("link")
    link.symlink_to(root)
    engine: Any = Volumes(container(link), images=("lab:dev",))
    on(engine, profile, link).claim_name()
    assert other(engine, profile, root) is None and engine.labels[CLAIM][FOLDER] == str(root)


def test_another_folder_is_refused_with_both_named(root: Path, profile: Profile) -> None:
    there = root.with_name("there")
    there.mkdir()
    engine: Any = Volumes(images=("lab:dev",))
    engine.labels[CLAIM] = by(there, "1234")
    with pytest.raises(RefusedError) as refused:
        on(engine, profile, root).claim_name()
    (problem,) = refused.value.problems
    assert problem.message == f"lab-dev belongs to {there} (user bob, uid 1234); this is {this_owner(root)}"
    assert "`name: lab-2`" in problem.hint and problem.hint.endswith(": docker volume rm lab-dev-owner")
    engine.found = (container(there),)
    there.rmdir()
    with pytest.raises(RefusedError, match="that folder no longer exists") as refused:
        on(engine, profile, root).require_name()
    assert "docker compose -p lab-dev down && docker volume rm lab-dev-owner" in refused.value.problems[0].hint


def test_another_user_of_the_same_folder_is_refused(root: Path, profile: Profile) -> None:
    engine: Any = Volumes(container(root))
    engine.labels[CLAIM] = by(root, "987654")
    with pytest.raises(RefusedError) as refused:
        on(engine, profile, root).require_name()
    text = str(refused.value)
    assert "user bob, uid 987654" in text and f"uid {os.getuid()}" in text


def test_under_sudo_it_is_who_called_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_UID", "987654")
    monkeypatch.setenv("SUDO_GID", "987654")
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert (this_owner(root).uid, this_owner(root).who) == ("987654", "uid 987654")
    monkeypatch.setattr(os, "getuid", lambda: 5)
    assert this_owner(root).uid == "5"


def test_of_two_at_once_one_gets_the_name(root: Path, profile: Profile) -> None:
    there = root.with_name("there")
    there.mkdir()

    class Raced(Volumes):
        def create_volume(self, name: str, labels: Mapping[str, str]) -> None:
            self.labels[name] = by(there)  # the other was a moment faster

    with pytest.raises(RefusedError, match="belongs to"):
        on(Raced(images=("lab:dev",)), profile, root).claim_name()


def test_a_left_over_claim_gives_way(root: Path, profile: Profile) -> None:
    engine: Any = Volumes()
    engine.labels[CLAIM] = by(root.with_name("there"))
    on(engine, profile, root).claim_name()
    assert engine.labels[CLAIM][FOLDER] == str(root)


def test_a_copy_has_the_name_of_its_local_file(root: Path) -> None:
    (root / "envgen.local.yaml").write_text("name: lab-2\n")
    found = load_project(file=root / "envgen.yaml", environ={}).project
    own = found.profiles["dev"]
    assert (found.name, own.compose_name, own.image_name) == ("lab-2", "lab-2-dev", "lab-2:dev")
    engine: Any = Volumes(container(root.with_name("there")), images=("lab:dev",))
    on(engine, own, root).claim_name()
    assert set(engine.labels) == {"lab-2-dev-owner"}
    committed = load_project(file=root / "envgen.yaml", local=False).project
    assert committed.profiles["dev"].compose_name == "lab-dev"


@pytest.mark.parametrize("text", ["Bob", "a--b", "-a", "[a]", "a/b", '""'])
def test_a_name_that_docker_would_refuse_is_refused(root: Path, text: str) -> None:
    (root / "envgen.local.yaml").write_text(f"name: {text}\n")
    with pytest.raises(ProjectError, match=r"name: (.* is not accepted here|expected text)"):
        load_project(file=root / "envgen.yaml", environ={})


def test_a_local_file_leaves_the_places_of_the_shared_one(root: Path) -> None:
    (root / "envgen.yaml").write_text(FILE.replace("name: lab\n", "name: lab\ndefault_profile: nowhere\n"))
    (root / "envgen.local.yaml").write_text("name: bob\n")
    with pytest.raises(ProjectError, match="there is no profile 'nowhere'") as refused:
        load_project(file=root / "envgen.yaml", environ={})
    place = refused.value.problems[0].place
    assert place is not None and place.line == 3


def test_any_folder_gives_a_name() -> None:
    assert as_name("My Fix #12!") == "my-fix-12"
    assert as_name("日本") == as_name("日本") and len(as_name("日本")) == 8
    assert len(as_name("x" * 300)) == 40
