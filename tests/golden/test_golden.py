"""Whole rendered files, byte for byte."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from envgen.profile.load import load_project
from envgen.render.outputs import render_project, scripts, write

HERE = Path(__file__).parent


def rendered(project: str) -> dict[str, bytes]:
    """What is rendered for this project alone: the programs in docker/ are the same for all."""
    return _rendered(HERE / "projects" / project / "envgen.yaml")


def _rendered(file: Path) -> dict[str, bytes]:
    files = render_project(load_project(file=file, local=False).project)
    return {path: content for path, content in files.items() if path not in scripts()}


def test_rendered_files_are_the_expected_ones(project: str, request: pytest.FixtureRequest) -> None:
    files = rendered(project)
    # A file named .dockerignore beside the expected ones would be obeyed by tools that look for one.
    files = {path.replace(".dockerignore", "dockerignore"): content for path, content in files.items()}
    folder = HERE / "expected" / project
    if request.config.getoption("--update-golden"):
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.rglob("*"):
            if old.is_file() and str(old.relative_to(folder)) not in files:
                old.unlink()
        write(folder, files)
    expected = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert sorted(files) == sorted(expected), "run pytest tests/golden --update-golden and read the diff"
    for path, content in files.items():
        assert content.decode() == expected[path].decode(), f"{path}: --update-golden accepts it"


def test_compose_files_say_nothing_twice(project: str) -> None:
    """Values come from anchors: no variable is defined in two places."""
    for path, content in rendered(project).items():
        if not path.startswith("compose/"):
            continue
        document = yaml.safe_load(content)
        assert set(document) <= {"name", "services", "volumes", "secrets"} | {k for k in document if k.startswith("x-")}
        lines = re.findall(r"^ +([A-Z][A-Z0-9_]+): ", content.decode(), re.M)
        assert len(lines) == len(set(lines)), path


def test_every_awkward_value_is_in_the_compose_file_as_it_was() -> None:
    """Read by another YAML reader than Compose's; tests/engine asks Compose itself."""
    file = HERE / "awkward" / "envgen.yaml"
    profile = load_project(file=file, local=False).project.profiles["awkward"]
    service = yaml.safe_load(_rendered(file)["compose/awkward.yaml"])["services"]["no"]
    assert tuple(word.replace("$$", "$") for word in service["command"]) == profile.services["no"].argv
    for name, value in {**profile.env, **profile.services["no"].env}.items():
        assert service["environment"][name].replace("$$", "$") == value
