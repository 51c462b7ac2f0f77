"""What prune finds in a project, and whose volumes it leaves alone. tests/engine/test_prune.py has the real engine."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from envgen.app import prune
from envgen.engine.base import Container
from envgen.profile.load import load_project

PROJECT = """\
version: 1
name: demo
default_profile: dev
profiles:
  dev:
    mode: development
    base: {image: base:1}
    cuda: {arch_list: "12.1a"}
    gpu: none
    services: {dev: {command: [sleep, infinity]}}
"""
DEAD = 999_999_999


def put(path: Path, age: float = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * 10)
    os.utime(path, (time.time() - age,) * 2)
    return path


@pytest.fixture(autouse=True)
def no_other_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setattr(prune.tempfile, "gettempdir", lambda: str(scratch))


def left(root: Path) -> set[str]:
    """What is removed, and is really gone."""
    items = [*prune._temporaries(root), *prune._old(root, "log", "logs", 3), *prune._old(root, "crash", "crash", 2)]
    assert all(not one.left for one in prune.remove(items))
    return {item.name for item in items}


def test_unfinished_files_go_and_those_of_a_living_process_stay(tmp_path: Path) -> None:
    root = tmp_path / "p"
    gone = [
        f".Dockerfile.{DEAD}.tmp", f"compose/.envgen-{DEAD}-0123abcd.tmp", f".envgen.lock.{DEAD}.tmp",
        f"patches/vllm/.series.{DEAD}.tmp", f".envgen/state/.build-dev.json.{DEAD}.tmp",
    ]  # fmt: skip
    stay = [
        "Dockerfile", f".Dockerfile.{os.getpid()}.tmp", "notes.tmp", f"mine.{DEAD}.tmp", f"src/.x.{DEAD}.tmp",
        "patches/vllm/.envgen-fresh", f".envgen-{os.getpid()}-0123abcd.tmp", ".hidden.tmp",
    ]  # fmt: skip
    for name in (*gone, *stay):
        put(root / name)
    put(root / "patches/vllm/.envgen-old", age=2 * 86400)
    assert left(root) == {*gone, "patches/vllm/.envgen-old"}
    assert sorted(stay) == sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    assert left(root) == set()


def test_the_newest_logs_and_crash_bundles_stay(tmp_path: Path) -> None:
    for number in range(6):
        put(tmp_path / f".envgen/logs/build-{'zab'[number % 3]}-{number}.log", age=100 - number)
        put(tmp_path / f".envgen/crash/{number}-serve.tar.gz", age=100 - number)
    assert len(left(tmp_path)) == 3 + 4
    assert {path.name[-5] for path in (tmp_path / ".envgen/logs").iterdir()} == {"3", "4", "5"}
    assert {path.name[0] for path in (tmp_path / ".envgen/crash").iterdir()} == {"4", "5"}


def test_no_link_is_followed(tmp_path: Path) -> None:
    victim = put(tmp_path / f"victim/.x.{DEAD}.tmp")
    for number in range(9):
        put(tmp_path / f"victim/{number}.log")
    root = tmp_path / "p"
    root.mkdir()
    (root / "compose").symlink_to(victim.parent)
    (root / ".envgen").mkdir()
    (root / ".envgen/logs").symlink_to(victim.parent)
    (root / f".y.{DEAD}.tmp").symlink_to(victim)
    assert left(root) == set()
    assert len(list(victim.parent.iterdir())) == 10


def test_folders_of_killed_runs_in_tmp_go_after_a_day(tmp_path: Path) -> None:
    for name, age in (("envgen-build-old", 2 * 86400), ("envgen-build-new", 0), ("other-old", 2 * 86400)):
        folder = put(tmp_path / "tmp" / name / "x").parent
        os.utime(folder, (time.time() - age,) * 2)
    assert {Path(name).name for name in left(tmp_path)} == {"envgen-build-old"}


@pytest.mark.parametrize(("folder", "shared"), [("p/compose", False), ("p", False), ("p2/compose", True), ("", True)])
def test_a_folder_elsewhere_with_the_same_name(tmp_path: Path, folder: str, shared: bool) -> None:
    put(tmp_path / "p/envgen.yaml").write_text(PROJECT)
    project = load_project(file=tmp_path / "p/envgen.yaml", environ={}).project
    labels = {"com.docker.compose.project": "demo-dev", prune.WORKING_DIR: str(tmp_path / folder)}
    one = Container("c", "c", "dev", "exited", "", 0, "", labels, {}, (), (), "")
    assert prune._is_shared(project.profiles["dev"], project.root, [one]) is shared


def test_what_can_not_be_removed_is_said() -> None:
    def refuse() -> str:
        raise PermissionError(1, "Operation not permitted")

    items = [prune.Item("log", "a", 1, "old", refuse), prune.Item("log", "b", 1, "old", lambda: "")]
    assert [one.left for one in prune.remove(items)] == ["Operation not permitted", ""]
