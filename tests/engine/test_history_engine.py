"""What changed since a service last worked: a base image that was changed by hand, under its old name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from local import free_port
from projects import BASE, Project, docker

from envgen.app import history

pytestmark = pytest.mark.engine

NAME = "envgentesthistory"
OURS = f"{NAME}-base:1"
SITE = "/usr/local/lib/python3.11/dist-packages"
# A server that a newer `handmade` breaks.
PROGRAM = (
    "import http.server as h, importlib.metadata as m, sys; m.version('handmade') == '1.0' or sys.exit('handmade: ABI');"
    "h.test(h.SimpleHTTPRequestHandler, port=8000)"
)
FILE = f"""
profiles:
  prod:
    mode: production
    base: {{image: "{OURS}"}}
    services:
      serve:
        command: [python3, -c, PROGRAM]
        ports: ["127.0.0.1:PORT:8000"]
        health: {{http: /, interval: 1s, start_period: 300s}}
"""


def by_hand(base: str, version: str) -> None:
    """What somebody types into a container of the base image, and commits under the image's name."""
    folder = f"{SITE}/handmade-1.0.dist-info"
    text = f"Metadata-Version: 2.1\\nName: handmade\\nVersion: {version}\\n"
    docker("run", "--name", NAME, "--entrypoint", "sh", base, "-c",
           f"mkdir -p {folder} && printf '{text}' >{folder}/METADATA")  # fmt: skip
    docker("commit", NAME, OURS)
    docker("rm", NAME)


@pytest.fixture
def project(make_project: Callable[..., Project]) -> Iterator[Project]:
    docker("rm", "-f", NAME, check=False)
    by_hand(BASE, "1.0")
    text = FILE.replace("PROGRAM", json.dumps(PROGRAM)).replace("PORT", str(free_port()))
    yield make_project(NAME, text)
    docker("image", "rm", "-f", OURS, f"{NAME}:prod-before", check=False)


def test_a_package_changed_by_hand_in_the_base_image_is_named(project: Project) -> None:
    project.envgen("build")
    project.envgen("up", "serve")
    (noted,) = history.starts(project.root, "prod", "serve")
    assert float(noted.facts[history.MEMORY]) > 0
    docker("kill", f"{NAME}-prod-serve-1")
    for words in ("ps", "status", "explain serve", "doctor serve"):
        shown = project.envgen(*words.split(), code=None).out
        assert "that worked: nothing that envgen knows has changed" in shown, (words, shown)
    project.envgen("down")
    by_hand(OURS, "2.0")
    project.envgen("build")
    failed = project.envgen("up", "serve", code=5).err
    (line,) = [line for line in failed.splitlines() if "that worked: " in line]
    changed = line.partition("that worked: ")[2]
    assert changed.startswith("image ") and ", package handmade 1.0 → 2.0; the same: command" in changed
