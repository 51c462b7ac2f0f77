"""The runner through a real engine: what goes in on stdin, and what a container without vLLM answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from projects import BASE, docker

from envgen.engine.client import Engine
from envgen.inside import run

pytestmark = pytest.mark.engine
PROGRAM = run.Program("predict/main")
REQUEST = {"words": [], "gpu": {"name": "NVIDIA GB10", "capability": [12, 1], "memory": 1 << 37}, "models": {}}


@pytest.fixture
def container() -> Iterator[str]:
    name = docker("run", "-d", "--rm", "--network", "none", "--entrypoint", "sleep", BASE, "300")
    yield name
    docker("rm", "-f", name)


def test_a_throw_away_container_answers(engine: Engine) -> None:
    found = run.ask(run.in_image(engine, BASE), "python3", PROGRAM, REQUEST, timeout=120)
    assert isinstance(found, dict)
    [why] = found["unasked"]
    assert why["step"] == "import" and "No module named 'vllm'" in why["why"] and found["versions"]["torch"]


def test_a_running_container_answers(engine: Engine, container: str) -> None:
    found = run.ask(run.in_container(engine, container), "python3", PROGRAM, REQUEST, timeout=120)
    assert isinstance(found, dict) and "No module named 'vllm'" in found["unasked"][0]["why"]


def test_an_image_without_that_python_is_named(engine: Engine) -> None:
    with pytest.raises(Exception, match=r"python9|executable file not found"):
        run.ask(run.in_image(engine, BASE), "python9", PROGRAM, REQUEST, timeout=60)
