"""An upgrade of the real FlashInfer: its kernels are compiled while the old server serves on (real nvcc, 12.1a, no GPU)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from local import free_port
from projects import Project, docker, forget
from test_four_commands import SERVER
from test_source_dev import nvcc_base

from envgen.engine.client import Engine

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

TOP = Path(__file__).parents[2]
NAME = "envgenahead"


@pytest.fixture
def project(engine: Engine, tmp_path: Path) -> Iterator[Project]:
    """examples/loop's `prod`, with a compiler and a server that has FlashInfer compile `page` before it answers."""
    del engine
    nvcc_base(f"{NAME}-base:1", tmp_path / "nvcc")
    root = tmp_path / "project"
    root.mkdir()
    (root / "server.py").write_text(SERVER)
    text = (TOP / "examples/loop/envgen.yaml").read_text("utf-8").replace("name: loop", f"name: {NAME}")
    text = text.replace("nvcr.io/nvidia/pytorch:25.12-py3", f"{NAME}-base:1")
    text = text.replace("default_profile: dev", "default_profile: prod")
    serve = f"""\
        command: [python3, /srv/server.py]
        mounts: {{server: {{host: server.py, path: /srv/server.py}}}}
        ports: ["127.0.0.1:{free_port()}:8000"]
        ready: {{port: 8000, timeout: 20m, prompt: The capital of France is, expect_text: Paris}}
"""
    text = text.replace("      serve: {command: [sleep, infinity]}\n", f"      serve:\n{serve}")
    (root / "envgen.yaml").write_text(text, encoding="utf-8")
    forget(f"{NAME}-prod")
    found = Project(root, NAME)
    try:
        yield found
    finally:
        found.envgen("down", "--volumes", code=None)
        docker("image", "rm", "-f", f"{NAME}:prod", f"{NAME}:prod-before", f"{NAME}-base:1", check=False)


def test_a_newer_flashinfer_starts_with_compiled_kernels(project: Project) -> None:
    project.envgen("lock")
    project.envgen("up", "--yes")
    done = project.envgen("upgrade", "flashinfer==0.7.4", "--yes", code=None)
    ahead, _, after = done.err.partition("starting the candidate in place of what runs")
    assert "compiling for the candidate, while the server serves on: page" in ahead and "page.so" in ahead
    assert "page: left to the start" not in ahead and after
    assert "nvcc for FlashInfer's page" not in after
    assert "page" in project.envgen("cache", "list", code=None).out  # of what serves
