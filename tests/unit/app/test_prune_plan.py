"""What prune finds in a project, and whose volumes it leaves alone. tests/engine/test_prune.py has the real engine."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import pytest

from envgen import files
from envgen.app import prune
from envgen.engine.owner import WORKING_DIR
from envgen.engine.values import Container
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


def put(path: Path, age: float = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * 10)
    os.utime(path, (time.time() - age,) * 2)
    return path


@pytest.fixture(autouse=True)
def no_other_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(files, "SHORT", tmp_path / "tmp")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)


def left(root: Path) -> set[str]:
    """What is removed, and is really gone."""
    items = [*prune._temporaries(root), *prune._old(root, "log", "logs", 3), *prune._old(root, "crash", "crash", 2)]
    assert not any(prune.remove(items))
    return {item.name for item in items}


def test_unfinished_files_go_and_those_of_a_living_process_stay(tmp_path: Path) -> None:
    root = tmp_path / "p"
    gone = [
        ".envgen-0123456789abcdef.tmp", "compose/.envgen-0123456789abcdef.tmp",
        "patches/a/.envgen-00000000000000aa.tmp", ".envgen/state/.envgen-0123456789abcdef.tmp",
        ".envgen-save-abcd_123/cache",
    ]  # fmt: skip
    stay = [
        "Dockerfile", "notes.tmp", ".x.tmp", "src/.envgen-0123456789abcdef.tmp", ".envgen-0123456789abcdeg.tmp",
        "patches/a/.envgen-fresh", "envgen-build-abcdefghi/x", "envgen-other-abcdefgh/x", ".hidden.tmp",
    ]  # fmt: skip
    for name in (*gone, *stay):
        put(root / name)
    with files.writing(root / "compose" / "dev.yaml") as out, files.Scratch("save", root) as scratch:
        out.write(b"half")
        assert left(root) == {*gone[1:-1]}, "making a scratch folder removes those of killed runs beside it"
        assert Path(scratch).is_dir()
    assert (root / "compose" / "dev.yaml").read_bytes() == b"half"
    there = [path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()]
    assert sorted([*stay, "compose/dev.yaml"]) == sorted(there)
    assert left(root) == set()


def test_the_newest_logs_and_crash_bundles_stay(tmp_path: Path) -> None:
    for number in range(6):
        put(tmp_path / f".envgen/logs/build-{'zab'[number % 3]}-{number}.log", age=100 - number)
        put(tmp_path / f".envgen/crash/{number}-serve.tar.gz", age=100 - number)
    assert len(left(tmp_path)) == 3 + 4
    assert {path.name[-5] for path in (tmp_path / ".envgen/logs").iterdir()} == {"3", "4", "5"}
    assert {path.name[0] for path in (tmp_path / ".envgen/crash").iterdir()} == {"4", "5"}


def test_no_link_is_followed(tmp_path: Path) -> None:
    victim = put(tmp_path / "victim/.envgen-0123456789abcdef.tmp")
    for number in range(9):
        put(tmp_path / f"victim/{number}.log")
    root = tmp_path / "p"
    root.mkdir()
    (root / "compose").symlink_to(victim.parent)
    (root / ".envgen").mkdir()
    (root / ".envgen/logs").symlink_to(victim.parent)
    (root / ".envgen-fedcba9876543210.tmp").symlink_to(victim)
    (root / ".envgen-save-abcdefgh").symlink_to(victim.parent)
    assert left(root) == set()
    assert len(list(victim.parent.iterdir())) == 10


def test_folders_of_killed_runs_go_at_once(tmp_path: Path) -> None:
    other = tmp_path / "tmp" / "envgen-defect-abcdefgh.txt"
    for name in ("envgen-build-01234567", "envgen-git-abcdefgh", "envgen-notes-abcdefgh", "other"):
        put(tmp_path / "tmp" / name / "inner" / "x")
    put(other)
    put(tmp_path / "cache" / "envgen" / "sdists" / ".envgen-0123456789abcdef.tmp")
    found = {Path(name).name for name in left(tmp_path / "p")}
    assert found == {"envgen-build-01234567", "envgen-git-abcdefgh", ".envgen-0123456789abcdef.tmp"}
    assert {path.name for path in (tmp_path / "tmp").iterdir()} == {"envgen-notes-abcdefgh", "other", other.name}


def test_a_folder_that_is_taken_again_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever cleans up between the two steps of making one: the other makes another."""
    made: list[str] = []
    real = tempfile.mkdtemp

    def swept(**words: str) -> str:
        made.append(real(**words))
        if len(made) == 1:
            assert not files.remove_leftover(Path(made[0]))
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", swept)
    with files.Scratch("git") as folder:
        assert made[1:] == [folder]
        assert files.leftovers(tmp_path / "tmp") == []
        assert files.remove_leftover(Path(folder)), "its process lives"
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize(("folder", "theirs"), [("p/compose", False), ("p", False), ("p2/compose", True), ("", True)])
def test_a_folder_elsewhere_with_the_same_name(tmp_path: Path, folder: str, theirs: bool) -> None:
    put(tmp_path / "p/envgen.yaml").write_text(PROJECT)
    project = load_project(file=tmp_path / "p/envgen.yaml", environ={}).project
    labels = {"com.docker.compose.project": "demo-dev", WORKING_DIR: str(tmp_path / folder)}
    one = Container("c", "c", "dev", "exited", "", 0, "", labels, {}, (), (), "")

    class Stub:
        def containers(self, _name: str, all: bool) -> tuple[Container, ...]:
            return (one,)

    assert set(prune.held_elsewhere(Stub(), project)) == ({"dev"} if theirs else set())  # type: ignore[arg-type]


def test_what_can_not_be_removed_is_said() -> None:
    def refuse() -> str:
        raise PermissionError(1, "Operation not permitted")

    items = [prune.Item("log", "a", 1, "old", refuse), prune.Item("log", "b", 1, "old", lambda: "")]
    assert prune.remove(items) == ["Operation not permitted", ""]
