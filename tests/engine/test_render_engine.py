"""Rendered files before Docker's own checkers, and the same bytes wherever they are rendered."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from projects import BASE
from rendering import docker

from envgen.profile.load import load_project
from envgen.render.outputs import render_project, write

pytestmark = pytest.mark.engine

TOP = Path(__file__).resolve().parents[2]
PROJECTS = [TOP, *sorted(path.parent for path in (TOP / "tests/golden/projects").glob("*/envgen.yaml"))]
PROJECTS += sorted(path.parent for path in (TOP / "examples").glob("*/envgen.yaml"))


@pytest.mark.parametrize("folder", PROJECTS, ids=lambda path: path.name)
def test_docker_finds_nothing_to_complain_about(folder: Path, tmp_path: Path) -> None:
    project = load_project(file=folder / "envgen.yaml", local=False).project
    files = render_project(project)
    write(tmp_path, files)
    for path in files:
        if path.startswith("Dockerfile"):
            # A base that is not here can't be looked up; the checker reads the rest anyway.
            text = files[path].decode()
            (tmp_path / path).write_text(
                re.sub(r"^FROM ((registry\.example|nvcr\.io)/\S+|debian:\S+)", f"FROM {BASE}", text, flags=re.MULTILINE)
            )
            done = docker("buildx", "build", "--check", "-f", str(tmp_path / path), str(tmp_path), check=False)
            assert "no warnings found" in done.stdout + done.stderr, done.stdout + done.stderr
        elif path.startswith("compose/"):
            base, gpu, _ = path.partition(".gpu-")
            chosen = ["-f", str(tmp_path / f"{base}.yaml" if gpu else tmp_path / path)]
            chosen += ["-f", str(tmp_path / path)] if gpu else []
            done = docker("compose", *chosen, "--profile", "*", "config", "-q")
            assert done.stderr == ""


@pytest.mark.parametrize("folder", PROJECTS, ids=lambda path: path.name)
def test_the_same_bytes_in_every_process(folder: Path, tmp_path: Path) -> None:
    seen = set()
    for number, env in enumerate(
        [
            {"PYTHONHASHSEED": "1", "TZ": "UTC", "LANG": "C", "LC_ALL": "C", "HOME": "/"},
            {"PYTHONHASHSEED": "2", "TZ": "Asia/Tokyo", "LANG": "tr_TR.UTF-8", "LC_ALL": "tr_TR.UTF-8", "USER": "x"},
            {"PYTHONHASHSEED": "3", "ENVGEN_BUILD__MAX_JOBS": "99", "MAX_JOBS": "98", "HTTP_PROXY": "http://p:1"},
        ]
    ):
        cwd = tmp_path / f"cwd{number}"
        cwd.mkdir()
        done = subprocess.run(
            [sys.executable, "-m", "envgen", "render", "--stdout", "-f", str(folder / "envgen.yaml")],
            env={"PATH": os.environ["PATH"], **env},
            cwd=cwd, capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr.decode()
        seen.add(done.stdout)
    assert len(seen) == 1


def test_the_shipped_files_have_not_drifted() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "envgen", "render", "--check"],
        cwd=TOP,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
