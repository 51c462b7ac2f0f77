"""A profile on an image as vLLM releases it. The base is a STAND-IN of that shape: `vllm serve` is its entry point, and
the image has its own Python. The server behind it is a stand-in, too."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator

import pytest
from local import free_port
from projects import BASE, Project, docker

pytestmark = pytest.mark.engine

NAME = "envgentestreleased"
SERVER = """
import http.server, json, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def reply(self, document):
        body = json.dumps(document).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def do_GET(self): self.reply({"data": [{"id": "tiny"}]})
    def do_POST(self):
        chat = self.path.endswith("chat/completions")
        self.rfile.read(int(self.headers["Content-Length"]))
        self.reply({"choices": [{"text": " Paris", "message": {"content": "Paris"}}] if chat else [{"text": " Paris"}]})
print("called with", json.dumps(sys.argv[1:]), flush=True)
http.server.ThreadingHTTPServer(("", 8000), Handler).serve_forever()
"""
SHAPED = f"""\
FROM {BASE}
RUN echo {base64.b64encode(f"#!/usr/bin/env python3{SERVER}".encode()).decode()} | base64 -d >/usr/local/bin/vllm \\
    && chmod +x /usr/local/bin/vllm
ENTRYPOINT ["vllm", "serve"]
"""
FILE = f"""
profiles:
  prod:
    mode: production
    base: {{image: {NAME}-base}}
    cuda: null
    services:
      serve:
        command: [vllm, serve, tiny]
        args: {{max-model-len: 512}}
        ports: ["127.0.0.1:PORT:8000"]
        health: {{http: /health, interval: 1s}}
        ready: {{model: tiny, port: 8000, timeout: 60s}}
"""


@pytest.fixture(scope="module")
def project(make_project: Callable[..., Project]) -> Iterator[Project]:
    docker("build", "-q", "-t", f"{NAME}-base", "-", stdin=SHAPED, timeout=300)
    made = make_project(NAME, FILE.replace("PORT", str(free_port())))
    made.envgen("build")
    yield made
    docker("image", "rm", "-f", f"{NAME}-base", check=False)


def test_nothing_of_the_image_changes(project: Project) -> None:
    """What is added lies in /opt/envgen; its Python has the very packages that it came with."""
    images = (f"{NAME}-base", f"{NAME}:prod")
    freeze = ("-m", "pip", "freeze", "--all")
    before, after = (docker("run", "--rm", "--entrypoint", "python3", image, *freeze) for image in images)
    assert before == after != ""
    base, made = (json.loads(docker("image", "inspect", image))[0]["RootFS"]["Layers"] for image in images)
    assert made[: len(base)] == base


def test_it_is_started_checked_and_answers(project: Project) -> None:
    try:
        ready = project.envgen("up", "serve", "--json").json
        assert ready["completion"] == " Paris"
        log = project.envgen("logs", "serve").out
        assert 'called with ["serve", "tiny", "--max-model-len", "512"]' in log
        found = project.envgen("doctor", "--json", code=None).json["findings"]
        assert [one["title"] for one in found if one["severity"] == "error"] == []
    finally:
        project.envgen("down")
