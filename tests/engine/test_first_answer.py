"""From an empty environment to an answer: the wheel, `init` and `up --yes`, with a real vLLM; the hub is a stand-in."""

from __future__ import annotations

from pathlib import Path

import pytest
from cpu_server import CpuServer
from hub_server import Hub, serve
from installed_wheel import run
from projects import docker, forget
from small_model import project_file

pytestmark = pytest.mark.engine
NAME = "envgentestfirst"


def test_init_and_up_end_with_a_completion_and_a_chat(installed: Path, cpu_server: CpuServer, tmp_path: Path) -> None:
    forget(NAME)
    run(installed, "init", NAME, cwd=tmp_path)
    project = tmp_path / NAME
    # What `init` writes takes a GPU and 65 GB of weights: the small profile instead. One process imports all of vLLM,
    # not two, and Docker looks at its health now and then.
    text = project_file(NAME, 8131).replace("interval: 2s", "interval: 60s")
    text = text.replace("VLLM_NO_USAGE_STATS: 1", "VLLM_ENABLE_V1_MULTIPROCESSING: 0, VLLM_NO_USAGE_STATS: 1")
    (project / "envgen.yaml").write_text(text)
    tiny = cpu_server.project.root / "models/tiny"
    try:
        with serve(Hub({path.name: path.read_bytes() for path in tiny.iterdir()})) as hub:
            gateway = docker("network", "inspect", "bridge", "-f", "{{(index .IPAM.Config 0).Gateway}}")
            up = run(installed, "up", "--yes", cwd=project, HF_ENDPOINT=f"http://{gateway}:{hub.port}")
        for part in ("serve is ready", "completed 'The capital of France is' with", "chat: "):
            assert part in up.stdout
        assert (project / "envgen.lock").is_file()
        # Nothing is left to make, and without a hub nothing is asked of one.
        again = run(installed, "up", "serve", cwd=project, HF_ENDPOINT="http://127.0.0.1:9")
        assert "was running already and is ready" in again.stdout and "missing" not in again.stderr
    finally:
        run(installed, "down", "--volumes", cwd=project)
        docker("image", "rm", "-f", f"{NAME}:prod", check=False)
        forget(NAME)
