"""One real vLLM for CPUs for the whole session: the quickstart's `cpu` profile, built, served, taken down at the end.

The build takes the same steps as the quickstart's, so BuildKit does the heavy ones once for both. A test that kills
the server brings it back with `restore`.
"""

from __future__ import annotations

import shutil
import socket
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from projects import Project, docker, forget

from envgen.engine.client import Engine

EXAMPLE = Path(__file__).parents[2] / "examples" / "quickstart"
NAME = "envgentestcpu"


@dataclass(frozen=True)
class CpuServer:
    """A served tiny model: ``project`` runs envgen commands beside its files; ``profile`` is always `cpu`."""

    project: Project
    port: int
    profile: str = "cpu"
    service: str = "serve"
    model: str = "tiny"
    max_model_len: int = 512

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def image(self) -> str:
        return f"{self.project.name}:{self.profile}"

    @property
    def container(self) -> str:
        """The id of the running container; empty when there is none."""
        return docker(
            "ps", "-q", "--no-trunc", "--filter", f"name=^{self.project.name}-{self.profile}-{self.service}-1$"
        )

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False

    def restore(self) -> None:
        """Start the service again unless it answers; for tests that killed it."""
        if not self.answers():
            self.project.envgen("up", self.service, "-p", self.profile)


def make_cpu_project(root: Path, port: int) -> CpuServer:
    """The quickstart under another name and port, built, with its tiny model in models/; nothing is started."""
    text = (EXAMPLE / "envgen.yaml").read_text(encoding="utf-8")
    assert text.count("name: quickstart\n") == 1 and text.count("127.0.0.1:8000:8000") == 1
    text = text.replace("name: quickstart\n", f"name: {NAME}\n").replace(
        "127.0.0.1:8000:8000", f"127.0.0.1:{port}:8000"
    )
    # Each process of vLLM imports all of it. No own process for the only worker, and what vLLM learns of the model's
    # class in one more process it keeps beside the model, for the next container.
    offline = "TORCHDYNAMO_DISABLE: 1\n"
    assert text.count(offline) == 1
    fewer = "        VLLM_ENABLE_V1_MULTIPROCESSING: 0\n        VLLM_CACHE_ROOT: /models/.vllm\n"
    text = text.replace(offline, offline + fewer)
    # So that one request can be profiled: three steps of the model, not the whole of it and of the web server.
    profiler = "{profiler: torch, torch_profiler_dir: /tmp/traces, max_iterations: 3, ignore_frontend: true}"
    assert text.count("          max-model-len: 512\n") == 1
    text = text.replace("max-model-len: 512\n", f"max-model-len: 512\n          profiler-config: {profiler}\n")
    forget(NAME)
    (root / "envgen.yaml").write_text(text, encoding="utf-8")
    server = CpuServer(Project(root, NAME), port)
    # A lock, because the quickstart has one: what is built is then the same, step by step.
    server.project.envgen("lock")
    server.project.envgen("render")
    server.project.envgen("build", "-p", "cpu")
    (root / "models").mkdir()
    code = (EXAMPLE / "make_tiny_model.py").read_text(encoding="utf-8")
    docker("run", "--rm", "-i", "--entrypoint", "python3", "-v", f"{root / 'models'}:/models", server.image, "-",
           stdin=code)  # fmt: skip
    return server


@pytest.fixture(scope="session")
def cpu_server(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CpuServer]:
    """The running server. Its start counts to the first test that asks for it."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = int(sock.getsockname()[1])
    root = tmp_path_factory.mktemp("cpu-server")
    began = time.monotonic()
    server = make_cpu_project(root, port)
    built = time.monotonic()
    try:
        server.project.envgen("up", "serve", "-p", "cpu")
        print(f"cpu server: built in {built - began:.0f} s, ready in {time.monotonic() - built:.0f} s")
        yield server
    finally:
        server.project.envgen("down", "-p", "cpu", "--volumes", code=None)
        docker("image", "rm", "-f", server.image, check=False)
        shutil.rmtree(root / "models", ignore_errors=True)
