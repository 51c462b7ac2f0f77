"""Helpers of the engine tests of rendering: small real packages, a project around them, and docker."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from projects import BASE as BASE

from envgen.profile.load import load_project
from envgen.render.outputs import render_project, write


def docker(
    *argv: str, env: Mapping[str, str] | None = None, check: bool = True, timeout: int = 600
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        ["docker", *argv],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={**os.environ, **(env or {})},
    )
    if check and done.returncode:
        raise AssertionError(
            f"docker {' '.join(argv[:6])}: exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        )
    return done


def package(folder: Path, name: str, *, requires: str = "", source: str = "") -> dict[str, str]:
    """A small Python project with a console script; returns and writes its files."""
    files = {
        "pyproject.toml": f"""\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "{name}"
version = "1.5"
dependencies = [{requires}]
[project.scripts]
{name}-cli = "{name}.cli:main"
[tool.setuptools]
packages = ["{name}"]
""",
        f"{name}/__init__.py": source or f'ORIGIN = "{name} as released"\n',
        f"{name}/cli.py": f"def main():\n    import {name}\n    print({name}.ORIGIN)\n",
    }
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return files


def render(root: Path, text: str) -> None:
    """Write a project file and everything that it renders."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "envgen.yaml").write_text(text)
    project = load_project(file=root / "envgen.yaml", local=False).project
    write(root, render_project(project))
