"""The tutorial's last block removes everything: `docker system df` shows what it showed before."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from projects import BASE, DEFAULTS, Project, docker, lean_base

pytestmark = [pytest.mark.engine, pytest.mark.nightly, pytest.mark.last]

NAME = "envgenend"
TUTORIAL = Path(__file__).parents[2] / "docs/tutorial.md"
FILE = """
profiles:
  cpu:
    mode: production
    caches: {jit: {path: /jit}}
    env: {LEVEL: 1}
    services: {serve: {command: [sleep, infinity]}}
"""


def disk() -> dict[str, tuple[str, str]]:
    """Kind -> how many there are, and how large they are."""
    rows = [json.loads(row) for row in docker("system", "df", "--format", "{{json .}}").splitlines()]
    return {row["Type"]: (row["TotalCount"], row["Size"]) for row in rows}


def test_nothing_of_it_is_left(tmp_path: Path) -> None:
    docker("builder", "prune", "--all", "--force")
    before = disk()
    lean_base(f"{NAME}-base:1")
    text = DEFAULTS.replace(BASE, f"{NAME}-base:1") + FILE
    project = Project(tmp_path / "first", NAME)
    project.root.mkdir()
    for level in "12":  # an update leaves the image before
        (project.root / "envgen.yaml").write_text(
            f"version: 1\nname: {NAME}\n{text.replace('LEVEL: 1', 'LEVEL: ' + level)}"
        )
        project.envgen("build", "--set", f"python_path=[/x{level}]")
        project.envgen("up", "--recreate", "--set", f"python_path=[/x{level}]")
    assert disk() != before
    block = TUTORIAL.read_text("utf-8").partition("**To remove everything**")[2].split("```")[1]
    lines = re.findall(r"^\$ ((?:envgen|docker) .*?)(?: +#.*)?$", block, re.MULTILINE)
    assert len(lines) == 4
    for line in lines:
        line = line.replace("project=quickstart", f"project={NAME}").replace(BASE, f"{NAME}-base:1")
        line = line.replace(" prune", " prune --force")
        if line.startswith("envgen"):
            project.envgen(*line.split()[1:])
        else:
            subprocess.run(line.split(), check=True, capture_output=True)
    assert disk() == before
