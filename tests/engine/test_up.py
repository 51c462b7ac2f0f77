"""`envgen up` and what belongs to it, on a real engine: checked before, awaited, and cleaned up after a failure."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from local import Quiet, free_port, serving, until
from projects import BASE, Project, docker, interrupt

pytestmark = pytest.mark.engine

NAME = "envgentestup"
PROJECT = f"{NAME}-prod"

# A STAND-IN for a vLLM server: it lists a model and completes prompts, as the variable ANSWER says.
SERVER = """
import http.server, json, os, time
class Handler(http.server.BaseHTTPRequestHandler):
    def reply(self, document, status=200):
        body = json.dumps(document).encode()
        self.send_response(status); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.reply({"data": [{"id": "tiny"}]} if self.path == "/v1/models" else {})
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.reply({"choices": [{"text": os.environ["ANSWER"]}]})
time.sleep(float(os.environ.get("DELAY", "0")))
print("serving", flush=True)
http.server.ThreadingHTTPServer(("", int(os.environ.get("PORT", "8000"))), Handler).serve_forever()
"""

# A value of a project file is one line.
ONE_LINE = f"exec(__import__('base64').b64decode('{base64.b64encode(SERVER.encode()).decode()}'))"

FILE = """
profiles:
  prod:
    mode: production
    env: {ANSWER: " Paris, of course", DELAY: "1"}
    secrets: [ENVGENTEST_TOKEN]
    services:
      serve:
        command: [python3, -c, SERVER]
        ports: ["127.0.0.1:PORT:8000"]
        ready: {model: tiny, port: 8000, timeout: 60s}
      hosted:
        command: [python3, -c, SERVER]
        network: host
        env: {PORT: "HOSTED"}
        ready: {model: tiny, port: HOSTED, timeout: 60s}
      plain:
        command: [sh, -c, "echo up; exec sleep 1000"]
      crash:
        command: [sh, -c, "echo about to fail; echo 'CUDA out of memory. Tried to allocate' >&2; exit 3"]
        health: {http: /, interval: 1s, start_period: 300s}  # else it counts as running after a second
      late:
        command: [sh, -c, "sleep 2; echo late failure; exit 4"]
        health: {http: /, interval: 1s, start_period: 300s}
      sick:
        command: [sh, -c, "echo sick; exec sleep 1000"]
        health: {http: /, interval: 1s, retries: 1, start_period: 0s}
      starting:
        command: [sh, -c, "echo loading; exec sleep 1000"]
        health: {http: /, interval: 1s, start_period: 600s}
      loop:
        command: [sh, -c, "echo again; exit 5"]
        restart: on-failure:50
        health: {http: /, interval: 60s, start_period: 600s}
      missing:
        command: [envgen-no-such-program]
"""


@pytest.fixture(scope="module")
def project(make_project: Callable[..., Project]) -> Project:
    port, hosted = free_port(), free_port()
    text = FILE.replace("SERVER", json.dumps(ONE_LINE)).replace("HOSTED", str(hosted)).replace(":PORT:", f":{port}:")
    made = make_project(NAME, text)
    (made.root / "port").write_text(str(port))
    (made.root / "hosted").write_text(str(hosted))
    made.envgen("build")
    return made


@pytest.fixture(autouse=True)
def nothing_left(project: Project) -> Iterator[None]:
    yield
    if leftovers():
        project.envgen("down")
        assert leftovers() == ""


def leftovers() -> str:
    label = f"label=com.docker.compose.project={PROJECT}"
    return docker("ps", "-aq", "--filter", label) + docker("network", "ls", "-q", "--filter", label)


def services() -> list[str]:
    label = f"label=com.docker.compose.project={PROJECT}"
    rows = docker("ps", "-a", "--filter", label, "--format", '{{.Label "com.docker.compose.service"}}')
    return sorted(rows.split())


def test_ready_means_that_it_completes_a_prompt(project: Project) -> None:
    done = project.envgen("up", "serve")
    port = (project.root / "port").read_text()
    assert "serve is ready after" in done.out and f"http://127.0.0.1:{port}" in done.out
    assert "completed 'The capital of France is' with ' Paris, of course'" in done.out
    assert re.search(r"ok    serve: start +[0-9.]+ s\n", done.err)
    again = project.envgen("up", "serve", "--json").json
    assert again["already_running"] is True and again["completion"] == " Paris, of course"


def test_services_start_one_after_the_other_and_a_failure_is_named(project: Project) -> None:
    done = project.envgen("up", "serve", "late", "plain", code=5)
    lines = [line.split(" ")[0] for line in done.out.splitlines() if " is ready" in line or " is running" in line]
    assert lines == ["serve", "plain"]
    assert (
        "1 of 3 services did not start: late" in done.err
        and "late is not ready: its process exited with code 4" in done.err
    )
    assert services() == ["plain", "serve"]


def test_a_project_on_a_disk_that_went_read_only(project: Project) -> None:
    """Whatever was rendered there before: nothing was, everything was, or for other settings."""
    project.envgen("up", "plain")
    verbs = ("ps", "status", "logs -n 1 plain", "exec plain true", "restart plain", "stop", "restart plain", "down")
    script = "".join(f"{sys.executable} -m envgen {verb} >>log 2>&1; echo $?\n" for verb in verbs)
    script = script.replace(">>log", f">>{project.root.parent}/log")
    script = f"mount --bind . . && mount -o remount,ro,bind . && cd {project.root} && ! touch x 2>/dev/null\n{script}"
    shutil.rmtree(project.root / ".envgen/render")
    words = ["unshare", *(["-m"] if os.geteuid() == 0 else ["-rm"]), "sh", "-c", script]
    done = subprocess.run(words, cwd=project.root, capture_output=True, text=True, timeout=600, check=False)
    assert done.stdout.split() == ["0"] * len(verbs), (done, (project.root.parent / "log").read_text())
    assert not (project.root / ".envgen/render").exists() and services() == []


def test_a_stopped_service_whose_network_was_pruned(project: Project) -> None:
    project.envgen("up", "plain")
    project.envgen("stop")
    docker("network", "rm", f"{PROJECT}_default")  # as `docker network prune` does
    assert "envgen up --profile prod plain --recreate" in project.envgen("restart", "plain", code=5).err
    assert "plain is running" in project.envgen("up", "plain", "--recreate").out


def test_a_service_that_does_not_run(project: Project) -> None:
    done = project.envgen("restart", "plain", code=1)
    assert "plain has no container to start" in done.err and "envgen up plain" in done.err
    assert "did you mean `plain`?" in project.envgen("up", "plian", code=2).err


# --- a running service is left alone ---------------------------------------------------------------------------------


def container_id(service: str) -> str:
    return docker("ps", "-q", "--no-trunc", "--filter", f"name={PROJECT}-{service}-1")


def test_fewer_cores_replace_nothing(project: Project) -> None:
    """Nothing of the container depends on cores and free memory, which change while a model is loaded."""
    project.envgen("up", "plain")
    before = container_id("plain")
    assert "MAX_JOBS=128 " in docker("inspect", "-f", "{{.Config.Env}}", before), "plain `docker exec` has a number"
    done = subprocess.run(
        ["taskset", "-c", str(min(os.sched_getaffinity(0))), sys.executable, "-m", "envgen", "up", "plain"],
        cwd=project.root, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and "plain was running already" in done.stdout, done.stderr
    assert container_id("plain") == before


def test_a_terminal_without_the_secret_replaces_nothing(project: Project) -> None:
    project.envgen("up", "plain", env={"ENVGENTEST_TOKEN": "hf_abcdefgh12345678"})
    before = container_id("plain")
    again = project.envgen("up", "plain")
    assert "ENVGENTEST_TOKEN is not set in this terminal" in again.err and "hf_abc" not in again.err
    assert container_id("plain") == before
    other = project.envgen("up", "plain", env={"ENVGENTEST_TOKEN": "hf_other1234567890"}, code=6)
    assert "ENVGENTEST_TOKEN has another value" in other.err and "hf_other" not in other.err
    assert container_id("plain") == before
    assert "hf_abcdefgh12345678" in docker("inspect", "-f", "{{.Config.Env}}", before)


def test_what_differs_is_named_and_asked_for(project: Project) -> None:
    project.envgen("up", "plain")
    before = container_id("plain")
    words = ("--set", "services.plain.env.LEVEL=2", "--set", "env.ANSWER=no")
    refused = project.envgen("up", "plain", *words, code=6)
    assert "environment: LEVEL=2 is new" in refused.err
    assert f"envgen up plain --profile prod {' '.join(words)} --recreate" in refused.err
    assert "environment: ANSWER= Paris, of course is now no" in refused.err
    refused = project.envgen("up", "plain", "--set", "services.plain.command=[sleep, '99']", code=6)
    assert "command: " in refused.err and "+99" in refused.err
    assert container_id("plain") == before
    project.envgen("up", "plain", "--recreate", *words)
    after = container_id("plain")
    assert after not in ("", before)
    assert "environment: LEVEL is no longer set" in project.envgen("up", "plain", code=6).err
    assert container_id("plain") == after


# --- nothing is started ---------------------------------------------------------------------------------------------


def test_a_port_that_a_container_has(project: Project) -> None:
    port = (project.root / "port").read_text()
    docker("rm", "-f", "envgentest-owner", check=False)
    docker("run", "-d", "--name", "envgentest-owner", "-p", f"127.0.0.1:{port}:1", BASE, "sleep", "100")
    try:
        done = project.envgen("up", "serve", code=6)
        assert f"port {port} is taken by container envgentest-owner" in done.err
        assert leftovers() == ""
    finally:
        docker("rm", "-f", "envgentest-owner")


def test_all_reasons_at_once(project: Project) -> None:
    port = int((project.root / "port").read_text())
    with socket.create_server(("127.0.0.1", port)):
        done = project.envgen(
            "up", "serve", "--set", "gpu=required", "--set", "python_path=[/x]", "--set",
            "network.ca_certificates=no.pem", "--set", "build.wheelhouse=nowhere", code=6,
        )  # fmt: skip
    for reason in (
        f"the image {NAME}:prod differs from the profile", f"port {port} is taken by", "no.pem does not exist",
        "nowhere does not exist", "neither an NVIDIA runtime nor CDI devices", "--set gpu=none",
    ):  # fmt: skip
        assert reason in done.err
    assert leftovers() == ""


# --- nothing half-started is left -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("service", "sentences"),
    [
        (
            "crash",
            ("its process exited with code 3", "CUDA out of memory. Tried", "the GPU has too little free memory"),
        ),
        ("sick", ("its health check failed", "sick")),
        ("loop", ("times, last with 5", "again")),
        ("missing", ("envgen-no-such-program", "services.missing.command")),
    ],
)
def test_a_service_that_fails(project: Project, service: str, sentences: tuple[str, ...]) -> None:
    done = project.envgen("up", service, code=5)
    for sentence in sentences:
        assert sentence in done.err
    assert leftovers() == ""


def test_one_that_ran_before_stays(project: Project) -> None:
    project.envgen("up", "plain")
    before = docker("ps", "-q", "--filter", f"name={PROJECT}-plain-1")
    project.envgen("up", "crash", code=5)
    assert services() == ["plain"] and docker("ps", "-q", "--filter", f"name={PROJECT}-plain-1") == before


def test_too_slow(project: Project) -> None:
    done = project.envgen("up", "starting", "--wait-timeout", "3", code=5)
    assert "not ready in time" in done.err and "health starting" in done.err and "loading" in done.err
    assert leftovers() == ""


def test_an_up_that_waits_leaves_what_replaced_its_container(project: Project) -> None:
    """By a second `envgen up`, and by the owner's own `docker compose up`."""

    def waiting() -> subprocess.Popen[str]:
        child = project.start("up", "starting")
        until(lambda: container_id("starting"))
        return child

    first = waiting()
    again = ("up", "starting", "--recreate", "--no-wait", "--set", "services.starting.env.LEVEL=2")
    project.envgen(*again)
    successor = container_id("starting")
    _, text = first.communicate(timeout=120)
    assert first.returncode == 5 and "its container was replaced while it started" in text, text
    assert container_id("starting") == successor != ""
    project.envgen("down")
    project.envgen("render")
    first = waiting()
    words = ("up", "-d", "--no-build", "--force-recreate", "starting")  # removed first, its network would go with `up`
    docker("compose", "-f", str(project.root / "compose/prod.yaml"), *words)
    successor = container_id("starting")
    _, text = first.communicate(timeout=120)
    assert first.returncode == 5, text
    assert container_id("starting") == successor != ""


def test_ctrl_c_stops_the_waiting_and_not_the_service(project: Project) -> None:
    child = project.start("up", "starting")
    until(lambda: services() == ["starting"])
    time.sleep(2)
    done = interrupt(child)
    assert done.code == 130 and "starting is still starting" in done.err and "Traceback" not in done.err
    assert services() == ["starting"]
    (row,) = project.envgen("ps", "--json").json
    assert row["state"] == "running" and row["health"] == "starting"


# --- readiness, against servers of this machine ---------------------------------------------------------------------


def test_a_proxy_of_the_shell_is_not_asked(project: Project) -> None:
    asked: list[str] = []

    class Proxy(Quiet):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.reply(b"", 502)

        do_POST = do_GET

    with serving(Proxy) as proxy:
        project.envgen("up", "serve", env={"HTTP_PROXY": proxy, "http_proxy": proxy})
    assert asked == []
