"""The tutorial's *Edit, prove, ship*, word for word: the real FlashInfer, its wheel, and an image of each."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from projects import docker, forget

from envgen.engine.client import Engine

pytestmark = pytest.mark.engine

TOP = Path(__file__).parents[2]
SETUP = ("cp -r examples/loop ~/loop", "scripts/fetch-source flashinfer-python==0.7.2.post1 ~/flashinfer", "cd ~/loop")


def steps() -> list[tuple[str, list[str]]]:
    """Each command of the section, and the lines that it prints."""
    text = (TOP / "docs/tutorial.md").read_text("utf-8")
    section = text.partition("## 8. Edit, prove, ship\n")[2].partition("To withdraw the patches")[0]
    found: list[tuple[str, list[str]]] = []
    for line in "\n".join(re.findall(r"```console\n(.*?)```", section, re.DOTALL)).splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line:
            found[-1][1].append(line)
    return found


@pytest.fixture
def home(engine: Engine, tmp_path: Path) -> Iterator[Path]:
    del engine
    forget("loop-dev")
    forget("loop-prod")
    shutil.copytree(TOP / "examples/loop", tmp_path / "loop")
    place = str(tmp_path / "flashinfer")
    fetch = [sys.executable, str(TOP / "scripts/fetch-source"), "flashinfer-python==0.7.2.post1", place]
    subprocess.run(fetch, check=True)
    try:
        yield tmp_path
    finally:
        for profile in ("dev", "prod"):
            words = [str(Path(sys.executable).with_name("envgen")), "down", "-p", profile, "--volumes"]
            subprocess.run(words, cwd=tmp_path / "loop", capture_output=True, check=False)
            docker("image", "rm", "-f", f"loop:{profile}", check=False)


def test_edit_prove_ship(home: Path) -> None:
    told = steps()
    assert [command.partition(" #")[0].rstrip() for command, _ in told[:3]] == list(SETUP)
    assert len(told) > 12
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command, printed in told[3:]:
        done = subprocess.run(
            ["bash", "-c", command], cwd=home / "loop", env={**os.environ, "PATH": path}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False, timeout=1500,
        )  # fmt: skip
        output = done.stdout + done.stderr
        assert done.returncode == 0, f"{command}\n{output[-4000:]}"
        for line in printed:
            pattern = ".*".join(map(re.escape, line.strip().split("...")))
            assert re.search(pattern, output), f"{command}\nprints no {line!r}:\n{output[-4000:]}"
