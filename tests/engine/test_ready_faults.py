"""`envgen up` against faults: a real vLLM on CPU, with a fault injector in front of it or with its processes killed.

Each failure ends in one sentence and a crash bundle; what was not started by the failing command stays.
"""

from __future__ import annotations

import base64
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cpu_server import CpuServer, free_port
from local import until
from projects import Finished, docker, inner_pid, interrupt, ran

from envgen.engine.client import Engine

pytestmark = pytest.mark.engine

# A FAULT INJECTOR: a proxy in the containers' network that hands all to the real server and spoils what MODE says.
INJECTOR = r"""
import http.server, os, pathlib, sys, time, urllib.request
MODE, BEGAN = os.environ["MODE"], time.time()
print("FAULT INJECTOR, mode", MODE, os.environ.get("FAULT_SECRET", ""), flush=True)
ONCE = pathlib.Path("/tmp/been-here")
if MODE == "restarts" and not ONCE.exists():
    ONCE.touch(); print("CUDA out of memory. Not really", flush=True)
    time.sleep(3); sys.exit(3)  # a busy machine looks at it for the first time before it ends, too
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def forward(self, body=None):
        headers = {"Content-Type": "application/json"}
        return direct.open(urllib.request.Request("http://serve:8000" + self.path, body, headers), timeout=60)
    def reply(self, status, kind, body):
        self.send_response(status); self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body))); self.end_headers(); self.wfile.write(body)
    def do_GET(self):
        if MODE == "late" and time.time() - BEGAN < 4: return self.reply(503, "text/plain", b"loading")
        with self.forward() as real: data = real.read().replace(b'"max_model_len":512', b'"max_model_len":16')
        self.reply(real.status, real.headers["Content-Type"], data)  # so that a chat of `up` is short
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if MODE == "garbage": return self.reply(200, "application/json", b'{"message": "It works!"}')
        if MODE == "hang": time.sleep(1000)
        if MODE == "late": time.sleep(4)
        with self.forward(body) as real: data = real.read()
        self.reply(200, real.headers["Content-Type"], data)
http.server.ThreadingHTTPServer(("", 9000), Handler).serve_forever()
"""
ONE_LINE = f"exec(__import__('base64').b64decode('{base64.b64encode(INJECTOR.encode()).decode()}'))"


def injector(port: int) -> dict[str, Any]:
    return {
        "command": ["python3", "-c", ONE_LINE], "env": {"MODE": "none"}, "ports": [f"127.0.0.1:{port}:9000"],
        "ready": {"model": "tiny", "port": 9000, "timeout": "600s"},
    }  # fmt: skip


@dataclass(frozen=True)
class Faults:
    """The shared server's project, with the injector beside it."""

    server: CpuServer

    def up(self, service: str, *words: str, code: int = 0, env: dict[str, str] | None = None) -> Finished:
        anew = () if service == "serve" else ("--recreate",)  # the real server goes on running
        return self.server.project.envgen("up", service, *anew, "-p", "cpu", *words, code=code, env=env)

    def fails(self, service: str, *words: str, env: dict[str, str] | None = None) -> tuple[str, dict[str, str]]:
        """The sentence that an `up` ends with, and what lies in the bundle that it names."""
        done = self.up(service, *words, code=5, env=env)
        sentence = next(line for line in done.err.splitlines() if line.startswith("envgen: "))
        (named,) = [line.split(": ", 1)[1] for line in done.err.splitlines() if "  crash bundle: " in line]
        members = self.bundle(self.server.project.root / named)
        assert json.loads(members["findings.json"])["reason"] in sentence
        return sentence, members

    def bundle(self, path: Path) -> dict[str, str]:
        with tarfile.open(path) as tar:
            return {name: tar.extractfile(name).read().decode() for name in tar.getnames()}  # type: ignore[union-attr]

    def container(self, service: str) -> str:
        return docker("ps", "-aq", "--no-trunc", "--filter", f"name=^{self.server.project.name}-cpu-{service}-1$")


def mode(name: str) -> tuple[str, str]:
    return "--set", f"services.fault.env.MODE={name}"


@pytest.fixture(scope="module")
def faults(cpu_server: CpuServer) -> Iterator[Faults]:
    cpu_server.write_local({"fault": injector(free_port())})
    found = Faults(cpu_server)
    cpu_server.restore()
    yield found
    if container := found.container("fault"):
        docker("rm", "-f", container)
    cpu_server.write_local()


# --- the injector in front of the real server -------------------------------------------------------------------------


def test_a_server_that_answers_wrongly(faults: Faults) -> None:
    """Other wrong answers are in tests/process/test_ready.py, without a container."""
    before, secret = faults.server.container, "correct-horse-battery-staple-4711"
    words = (*mode("garbage"), "--set", "secrets=[FAULT_SECRET]")
    message, members = faults.fails("fault", *words, env={"FAULT_SECRET": secret})
    assert 'the answer to the first prompt is not a completion: {"message": "It works!"}' in message
    assert "FAULT INJECTOR, mode garbage [redacted" in members["server.log"]
    assert not [name for name, text in members.items() if secret in text]
    assert "COMMAND" in members["processes.txt"] and "MemAvailable" in members["memory.txt"]
    assert "services:" in members["project/compose/cpu.yaml"] and json.loads(members["doctor.json"])
    assert faults.container("fault") == "" and faults.server.container == before  # only what it had started is gone


def test_503_first_and_a_slow_first_token_are_no_failures(faults: Faults) -> None:
    done = faults.up("fault", *mode("late"), "--json").json
    assert done["completion"] and done["first_token_seconds"] >= 4 and done["phases"]["answer"] >= 3


def test_a_restart_is_seen_counted_and_forgiven(faults: Faults) -> None:
    done = faults.up("fault", *mode("restarts"), "--set", "services.fault.restart=on-failure:2", "--json")
    assert done.json["restarts"] == 1 and "its process exited and was restarted 1 time (on-failure:2)" in done.err


def test_ctrl_c_while_it_waits_leaves_the_service_and_no_bundle(faults: Faults) -> None:
    folder = faults.server.project.root / ".envgen" / "crash"
    before = sorted(folder.glob("*"))
    if earlier := faults.container("fault"):
        docker("rm", "-f", earlier)  # its log has what is waited for
    child = faults.server.project.start("up", "fault", "--recreate", "-p", "cpu", *mode("hang"))
    until(lambda: bool(faults.container("fault")) and "GET /v1/models" in logs(faults.container("fault")))
    done = interrupt(child)
    assert done.code == 130 and "fault is still starting" in done.err
    assert docker("inspect", "-f", "{{.State.Status}}", faults.container("fault")) == "running"
    assert sorted(folder.glob("*")) == before


# --- the real server itself -------------------------------------------------------------------------------------------


def test_what_the_log_of_the_real_server_must_show(faults: Faults) -> None:
    before = faults.server.container
    ready = "services.serve.ready"
    eager = f"{ready}.expect.eager='Enforce eager set, disabling torch.compile'"
    done = faults.up("serve", "--set", eager, "--set", f"{ready}.forbid.gpu='CUDA graphs are captured'")
    assert "eager: (APIServer pid=" in done.out
    wanted, members = faults.fails("serve", "--set", f"{ready}.expect.attention='Using FLASHINFER backend'")
    assert "its log never showed ready.expect.attention: Using FLASHINFER backend" in wanted
    assert json.loads(members["findings.json"])["missing"] == ["attention"]
    unwanted, _ = faults.fails("serve", "--set", f"{ready}.forbid.eager='Enforce eager'")
    assert "its log matches ready.forbid.eager: '(APIServer pid=" in unwanted
    assert faults.server.container == before and faults.server.answers()


def test_the_real_server_hangs(faults: Faults, engine: Engine) -> None:
    container = faults.server.container
    core = next(one.pid for one in engine.processes(container) if "EngineCor" in one.command)
    docker("exec", container, "sh", "-c", f"kill -STOP {inner_pid(core)}")
    try:
        message, members = faults.fails("serve", "--set", "services.serve.ready.timeout=60s")
    finally:
        docker("exec", container, "sh", "-c", f"kill -CONT {inner_pid(core)}")
    assert "waiting for its first answer" in message and "has not sent its first token" in message
    (row,) = [line for line in members["processes.txt"].splitlines() if line.split()[0] == str(core)]
    assert row.split()[2].startswith("T")  # stopped, as the bundle shows
    assert faults.server.container == container


def logs(container: str) -> str:
    done = ran("logs", container, check=False)
    return done.stdout + done.stderr
