"""A real Docker Engine, and projects made on the spot.

Nothing here skips: where no engine answers, every test of this tier fails and says how to get one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from cpu_server import cpu_server as cpu_server
from cpu_server import quickstart as quickstart
from doctor_lab import checkout as checkout
from doctor_lab import image as image
from installed_wheel import installed as installed
from jit_lab import cache_command as cache_command
from jit_lab import jit_image as jit_image
from jit_lab import jit_lab as jit_lab
from pair import four as four
from pair import machines as machines
from projects import BASE, DEFAULTS, Project, docker, forget

from envgen.engine.client import Engine, connect
from envgen.errors import EngineError


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that end what others share run after all others."""
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)


@pytest.fixture(scope="session")
def engine() -> Engine:
    """The engine that the environment names."""
    try:
        found = connect()
    except EngineError as error:
        pytest.fail(
            f"this tier needs a Docker Engine: {error}\n`scripts/engine up` starts a private one", pytrace=False
        )
    if found.image(BASE) is None:
        pytest.fail(f"the base image {BASE} is not there; `scripts/stand-in-base` makes a stand-in", pytrace=False)
    return found


@pytest.fixture(scope="session")
def make_project(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Project]]:
    """Make a project from the text of its file behind DEFAULTS; what it made on the engine is removed at the end."""
    made: list[Project] = []

    def make(name: str, text: str) -> Project:
        forget(name)
        root = tmp_path_factory.mktemp(name)
        (root / "envgen.yaml").write_text(f"version: 1\nname: {name}\n{DEFAULTS}{text}", encoding="utf-8")
        made.append(Project(root, name))
        return made[-1]

    yield make
    for project in made:
        for profile in ("dev", "prod"):
            project.envgen("down", "-p", profile, "--volumes", code=None)
        docker("image", "rm", "-f", f"{project.name}:dev", f"{project.name}:prod", check=False)
        forget(project.name)
