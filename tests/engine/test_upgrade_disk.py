"""`envgen upgrade` on an engine of its own: its disk is full during the build, and it is restarted during the trial."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from projects import DEFAULTS, Project, docker, lean_base
from toy_index import toy_project

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

ROOT = Path(__file__).resolve().parents[2]
NAME = "envgentestdisk"
TRY = ("upgrade", "toy==1.1", "--yes", "--keep")


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An engine whose disk has little room; the environment names it."""
    disk, folder = tmp_path / "disk.img", Path(f"/tmp/{NAME}-{os.getpid()}")
    base = f"{NAME}base:1"
    lean_base(base)
    docker("save", "-o", str(tmp_path / "base.tar"), base, timeout=300)
    docker("image", "rm", "-f", base)
    folder.mkdir()
    with disk.open("wb") as file:
        file.truncate(1100 << 20)
    subprocess.run(["mkfs.ext4", "-q", disk], check=True)
    subprocess.run(["mount", "-o", "loop", disk, folder], check=True)
    engine = [str(ROOT / "scripts/engine"), "--dir", str(folder / "engine")]
    try:
        subprocess.run([*engine, "up"], check=True, capture_output=True)
        printed = subprocess.run([*engine, "env"], check=True, capture_output=True, text=True).stdout
        for name in ("DOCKER_HOST", "DOCKER_CONFIG"):
            monkeypatch.setenv(name, re.findall(rf"{name}='?([^'\n]+)", printed)[0])
        docker("load", "-i", str(tmp_path / "base.tar"), timeout=300)
        yield folder
    finally:
        subprocess.run([*engine, "down", "--purge"], check=False)
        subprocess.run(["umount", folder], check=True)
        folder.rmdir()


def test_a_full_disk_and_an_engine_that_restarts(small: Path, tmp_path: Path) -> None:
    def make(name: str, text: str) -> Project:
        (tmp_path / "envgen.yaml").write_text(f"version: 1\nname: {name}\n{DEFAULTS}{text}")
        return Project(tmp_path, name)

    def at(marker: str, count: int, act: str) -> int:
        """Do something when the command has printed a marker; its exit code."""
        child, printed = project.start(*TRY), 0
        assert child.stderr
        for line in child.stderr:
            printed += marker in line
            if marker in line and printed == count:
                subprocess.run(["bash", "-c", act], check=False, capture_output=True)
        return child.wait(120)

    with toy_project(make, NAME, tmp_path / "index", f"{NAME}base:1") as project:
        project.envgen("lock")
        project.envgen("up", "serve", "--yes")
        before = {name: (project.root / name).read_bytes() for name in ("envgen.yaml", "envgen.lock")}
        assert at("load build definition", 1, f"cat /dev/zero >{small}/fill") == 4
        (small / "fill").unlink()
        assert project.envgen("up", "serve", "--json").json["already_running"]

        restart = f"{ROOT}/scripts/engine --dir {small}/engine"
        assert at("32 questions", 2, f"{restart} down; {restart} up") in (3, 5)
        assert before == {name: (project.root / name).read_bytes() for name in before}
        assert "envgen upgrade toy==1.1" in project.envgen("status").out
        project.envgen("up", "serve")
        assert before == {name: (project.root / name).read_bytes() for name in before}
        project.envgen(*TRY)
        project.envgen("upgrade", "--back")
        assert before == {name: (project.root / name).read_bytes() for name in before}
        project.envgen("down")
