"""`pytest tests/golden --update-golden` writes what is rendered now; read the diff before you commit it."""

from __future__ import annotations

from pathlib import Path

import pytest

PROJECTS = sorted(path.parent.name for path in (Path(__file__).parent / "projects").glob("*/envgen.yaml"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the rendered files over the expected ones")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "project" in metafunc.fixturenames:
        metafunc.parametrize("project", PROJECTS)
