"""`normalise` in steps that do what Docker's two ways of making a layer take differently (docs/reproducible.md)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from layers import touched_only
from projects import LEAN, docker

from envgen.render.quote import render

pytestmark = pytest.mark.engine

TOP = Path(__file__).resolve().parents[2]
BASE, IMAGE = "envgentest-layers:base", "envgentest-layers:1"
STEPS = (
    "mkdir -p /opt && echo one > /opt/it",
    "echo two > /opt/it",  # of the same size: told from the one below by its time alone
    "mkdir /opt/folder && echo x > /opt/folder/file",
    "touch /tmp/passing /run/passing && rm /tmp/passing /run/passing",
    "ln -s it /opt/link && ln -sfn it /opt/link",
    "chmod 600 /opt/folder/file",
)


def dockerfile(number: Callable[[int], int]) -> str:
    """A build of STEPS with the mounts and the last command that rendered Dockerfiles give theirs."""
    lines = [f"FROM {BASE} AS origin", "FROM scratch AS scripts", "COPY normalise /build/normalise", "FROM origin"]
    lines += ["ARG SOURCE_DATE_EPOCH=1700000000", "ENV SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH"]
    mounts = render("partials/reproducible-mounts.j2", {"plan": {"reproducible": True}})
    for place, step in enumerate(STEPS, 1):
        lines.append(f"RUN {mounts}{step} && sh /run/envgen/normalise {number(place)}")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module", autouse=True)
def lean_base() -> Iterator[None]:
    # Another base each time: an engine that was restarted and holds these steps from before makes layers the other way.
    docker("build", "-q", "-t", BASE, "-", stdin=LEAN.replace("SALT", os.urandom(8).hex()), timeout=300)
    yield
    docker("image", "rm", "-f", BASE, check=False)


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Callable[[str], None]]:
    def run(text: str) -> None:
        (tmp_path / "Dockerfile").write_text(text)
        (tmp_path / "normalise").write_bytes((TOP / "docker/build/normalise").read_bytes())
        words = ["docker", "buildx", "build", "--no-cache", "--load", "-t", IMAGE, str(tmp_path)]
        env = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr[-3000:]

    yield run
    docker("image", "rm", "-f", IMAGE, check=False)


def test_what_a_step_wrote_is_in_its_layer_by_both_ways(build: Callable[[str], None]) -> None:
    build(dockerfile(lambda number: number))
    assert touched_only(IMAGE, BASE) == []
    assert docker("run", "--rm", IMAGE, "cat", "/opt/it", "/opt/folder/file") == "two\nx"


def test_steps_of_one_time_would_lose_a_rewrite_of_equal_size(build: Callable[[str], None]) -> None:
    """What the numbers are for; and that the test above can fail."""
    build(dockerfile(lambda number: 0))
    lost = [line.partition(": ")[2] for line in touched_only(IMAGE, BASE)]
    assert "opt/it" in lost
