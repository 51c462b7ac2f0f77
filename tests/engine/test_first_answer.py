"""From nothing to an answer by `init` and `up`, with a real vLLM; the hub is a stand-in."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cpu_server import CpuServer
from hub_server import Hub, serve
from projects import Project, docker
from small_model import project_file

pytestmark = pytest.mark.engine
NAME = "envgentestfirst"


def test_init_and_up_end_with_a_completion_and_a_chat(
    make_project: Callable[..., Project], cpu_server: CpuServer
) -> None:
    project = make_project(NAME, "")
    (project.root / "envgen.yaml").unlink()
    project.envgen("init", ".", "--name", NAME)
    (project.root / "envgen.yaml").write_text(project_file(NAME, 8131))
    tiny = cpu_server.project.root / "models/tiny"
    with serve(Hub({path.name: path.read_bytes() for path in tiny.iterdir()})) as hub:
        gateway = docker("network", "inspect", "bridge", "-f", "{{(index .IPAM.Config 0).Gateway}}")
        up = project.envgen("up", "serve", "--yes", env={"HF_ENDPOINT": f"http://{gateway}:{hub.port}"})
    try:
        for part in ("serve is ready", "completed 'The capital of France is' with", "chat: "):
            assert part in up.out
        assert (project.root / "envgen.lock").is_file()
        # Nothing is left to make, and without a hub nothing is asked of one.
        again = project.envgen("up", "serve", env={"HF_ENDPOINT": "http://127.0.0.1:9"})
        assert "was running already and is ready" in again.out and "missing" not in again.err
    finally:
        project.envgen("down")
