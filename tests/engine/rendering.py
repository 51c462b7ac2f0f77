"""Helpers of the engine tests of rendering: small real packages, and a project around them."""

from __future__ import annotations

from pathlib import Path

from envgen.profile.load import load_project
from envgen.render.outputs import render_project, write


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
