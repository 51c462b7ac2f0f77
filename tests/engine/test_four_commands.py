"""README's four commands, in their order, on the real FlashInfer 0.7.4 and the real nvcc, for 12.1a, without a GPU.

The module is `page`, small enough for two cores, in place of `fused_moe_120`. Its server has FlashInfer compile it before
it answers, as vLLM does, and calls it done by the library that is there.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from local import free_port
from projects import Project, docker, forget
from test_source_dev import nvcc_base

from envgen.engine.client import Engine

pytestmark = pytest.mark.engine

TOP = Path(__file__).parents[2]
NAME = "envgenfour"
SERVER = """\
import http.server, json
from flashinfer.jit.page import gen_page_module
spec = gen_page_module()
getattr(spec, "_timed_build", spec.build)()  # as build_and_load() of 0.7.4, or 0.7.2, without loading it
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"data": [{"id": "four", "object": "model"}]}).encode())

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"choices": [{"text": " Paris.", "message": {"content": " Paris."}}]}).encode())

http.server.ThreadingHTTPServer(("0.0.0.0", 8000), Handler).serve_forever()
"""


@pytest.fixture
def project(engine: Engine, tmp_path: Path) -> Iterator[Project]:
    """examples/loop, with a compiler and a server."""
    del engine
    nvcc_base(f"{NAME}-base:1", tmp_path / "nvcc")
    release, folder = "flashinfer-python==0.7.4", str(tmp_path / "flashinfer")
    fetch = [sys.executable, str(TOP / "scripts/fetch-source"), release, folder]
    subprocess.run(fetch, check=True, capture_output=True)
    root = tmp_path / "project"
    root.mkdir()
    (root / "server.py").write_text(SERVER)
    text = (TOP / "examples/loop/envgen.yaml").read_text("utf-8").replace("name: loop", f"name: {NAME}")
    text = text.replace("nvcr.io/nvidia/pytorch:25.12-py3", f"{NAME}-base:1").replace("0.7.2.post1", "0.7.4")
    serve = f"""\
      serve:
        command: [python3, /srv/server.py]
        mounts: {{server: {{host: server.py, path: /srv/server.py}}}}
        ports: ["127.0.0.1:{free_port()}:8000"]
        ready: {{port: 8000, timeout: 20m, prompt: The capital of France is, expect_text: Paris}}
"""
    (root / "envgen.yaml").write_text(text + serve, encoding="utf-8")
    forget(f"{NAME}-dev")
    found = Project(root, NAME)
    try:
        yield found
    finally:
        found.envgen("down", "--volumes", code=None)
        docker("image", "rm", "-f", f"{NAME}:dev", f"{NAME}-base:1", check=False)


def test_build_up_doctor_and_one_kernel_compiled_again(project: Project) -> None:
    readme = (TOP / "README.md").read_text("utf-8")
    commands = re.findall(r"^\$ envgen (.*?) +#", readme, re.MULTILINE)[:4]
    assert [command.split()[0] for command in commands] == ["build", "up", "doctor", "cache"]
    build, up, doctor, clear = (command.replace("fused_moe_120", "page").split() for command in commands)

    def library() -> str:
        """When it was linked, to the nanosecond; "" where it is not there."""
        words = "stat -c %.9Y /root/.cache/flashinfer/0.7.4/121a/cached_ops/page/page.so || true"
        return project.envgen("exec", "-T", "serve", "--", "sh", "-c", words).out.strip()

    project.envgen(*build)
    assert "Paris" in project.envgen(*up).out
    first = library()
    assert first
    assert "flashinfer is /workspace/flashinfer/flashinfer/__init__.py" in project.envgen(*doctor).out
    assert "removed page (0.7.4/121a)" in project.envgen(*clear).out
    assert library() == ""
    project.envgen("restart", "serve")
    assert library() not in ("", first)
    (module,) = json.loads(project.envgen("cache", "list", "page", "--json").out)["modules"]
    assert module["state"] == "fresh" and module["seconds"] > 1  # by FlashInfer's own log
    assert "FlashInfer compiled it in " in project.envgen("cache", "why", "page").out
    header = next((project.root.parent / "flashinfer").rglob("include/flashinfer/page.cuh"))
    before = header.read_text()
    header.write_text(before + "// mine\n")
    why = project.envgen("cache", "why", str(header), code=None).out
    header.write_text(before)
    assert "page (0.7.4/121a): stale" in why and str(header.name) in why
