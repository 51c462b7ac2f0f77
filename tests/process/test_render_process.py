"""The same bytes wherever they are rendered: another hash seed, time zone, language, home and environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
PROJECTS = [TOP, *sorted(path.parent for path in (TOP / "tests/golden/projects").glob("*/envgen.yaml"))]
PROJECTS += sorted(path.parent for path in (TOP / "examples").glob("*/envgen.yaml"))
RENDER = """\
import sys
from pathlib import Path
from envgen.app.session import Session
from envgen.render.outputs import render_project
for file in sys.argv[1:]:
    for path, content in sorted(render_project(Session(Path(file)).loaded(local=False).project).items()):
        print(path, content.decode())
    print("END OF A PROJECT")
"""
Rendered = list[list[str]]


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Rendered:
    """What each of three processes prints of each project."""
    found = []
    for env in (
        {"PYTHONHASHSEED": "1", "TZ": "UTC", "LANG": "C", "LC_ALL": "C", "HOME": "/"},
        {"PYTHONHASHSEED": "2", "TZ": "Asia/Tokyo", "LANG": "tr_TR.UTF-8", "LC_ALL": "tr_TR.UTF-8", "USER": "x"},
        {"PYTHONHASHSEED": "3", "ENVGEN_BUILD__MAX_JOBS": "99", "MAX_JOBS": "98", "HTTP_PROXY": "http://p:1"},
    ):
        done = subprocess.run(
            [sys.executable, "-c", RENDER, *(folder / "envgen.yaml" for folder in PROJECTS)],
            env={"PATH": os.environ["PATH"], **env},
            cwd=tmp_path_factory.mktemp("cwd"), capture_output=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr.decode()
        found.append(done.stdout.decode().split("END OF A PROJECT\n")[:-1])
    return found


@pytest.mark.parametrize("folder", PROJECTS, ids=lambda path: path.name)
def test_the_same_bytes_in_every_process(rendered: Rendered, folder: Path) -> None:
    first, second, third = (one[PROJECTS.index(folder)] for one in rendered)
    assert len(first) > 1000 and first == second == third
