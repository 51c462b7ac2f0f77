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
