"""Two machines: two real engines in network namespaces of their own, reached by ssh, joined by a cable."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from pair import CARD, Pair, failed, small_image, two_machines
from projects import BASE

from envgen.engine.base import Engine

pytestmark = pytest.mark.engine

IMAGE = "envgentest-pair:cpu"
NUMBERS = {"spark-1": 211, "spark-2": 212}
# Stands in for vLLM, which needs minutes to start here: rank 0 answers like its server, the others wait. A worker
# whose model folder holds a file `broken` ends at once, as one does whose weights cannot be read.
SERVER = """\
#!/usr/bin/python3
import http.server, json, os, sys, time
if "--headless" in sys.argv and os.path.exists(sys.argv[2] + "/broken"):
    sys.exit("huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name'")
print("world_size=2", *sys.argv[3:], flush=True)
while "--headless" in sys.argv:
    time.sleep(1)
class Handler(http.server.BaseHTTPRequestHandler):
    def reply(self, document):
        data = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def do_GET(self):
        self.reply({"data": [{"id": "tiny"}]})
    def do_POST(self):
        self.reply({"choices": [{"text": " Paris"}]})
http.server.HTTPServer(("0.0.0.0", 8000), Handler).serve_forever()
"""


@pytest.fixture(scope="module")
def pair(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    image = tmp_path_factory.mktemp("pair") / "small.tar"
    small_image(BASE, IMAGE, image, SERVER)
    with two_machines(Path(f"/tmp/envgentest-pair-{os.getpid()}"), NUMBERS, image) as made:
        project(made.folder)
        yield made


def project(folder: Path) -> None:
    (folder / "envgen.yaml").write_text(
        yaml.safe_dump(
            {
                "version": 1,
                "name": "envgentest-pair",
                "profiles": {
                    "cpu": {
                        "mode": "production", "base": {"image": BASE}, "cuda": {"arch_list": "12.1a"}, "gpu": "none",
                        "caches": {"models": {"path": "/models", "host": "./models"}},
                        "services": {
                            "serve": {
                                "command": ["vllm", "serve", "/models/tiny"], "args": {"tensor-parallel-size": 2},
                                "ports": ["8000:8000"], "cluster": {"nodes": ["spark-1", "spark-2"]},
                                "ready": {"model": "tiny", "port": 8000, "timeout": "60s"},
                            }
                        },
                    }
                },
            }
        )
    )  # fmt: skip


@pytest.fixture
def ready(pair: Pair) -> Pair:
    """Two machines that fit together."""
    pair.write()
    for name in NUMBERS:
        model = pair.folder / "models" / name / "tiny"
        model.mkdir(parents=True, exist_ok=True)
        (model / "config.json").write_text("{}")
        with (model / "model.safetensors").open("wb") as file:
            file.truncate(20 << 20)
    return pair


def test_two_machines_that_fit_together(ready: Pair) -> None:
    found = ready.check(0)
    messages = [one["message"] for one in found]
    assert "the image is the same" in messages  # one store calls it by its manifest, the other by its configuration
    ids = {ready.docker(name, "image", "inspect", IMAGE, "--format", "{{.Id}}") for name in NUMBERS}
    assert len(ids) == 2
    assert "the model is the same: 2 files, large ones by samples" in messages
    assert f"{CARD} has 192.168.177.211, MTU 9000, 10000 Mbit/s" in messages
    assert sum("connected" in message for message in messages) == 2
    # The rendered files and one machine's variables are all that plain Docker needs.
    ready.envgen("render")
    words = ["compose", "--env-file", ".envgen/nodes/spark-2.env", "-f", "compose/cpu.yaml"]
    argv = ["docker", "--context", "spark-2", *words, "-f", "compose/cpu.serve.worker.yaml", "config", "--format=json"]
    done = subprocess.run(argv, cwd=ready.folder, env=ready.env, capture_output=True, text=True, check=True)
    service = json.loads(done.stdout)["services"]["serve"]
    assert service["network_mode"] == "host"
    assert service["command"][-5:] == ["--headless", "--node-rank", "1", "--master-addr", "192.168.177.211"]
    assert service["environment"]["VLLM_HOST_IP"] == "192.168.177.212"
    assert service["volumes"][0]["source"] == str(ready.folder / "models/spark-2")


def test_other_weights_on_one_machine(ready: Pair) -> None:
    with (ready.folder / "models/spark-2/tiny/model.safetensors").open("r+b") as file:
        file.seek(10 << 20)
        file.write(b"other")
    assert failed(ready.check(6)) == ["spark-1+spark-2: the model differs in model.safetensors"]
    there = {**ready.env, "DOCKER_CONTEXT": "spark-1"}
    argv = [sys.executable, "-m", "envgen", "doctor", "--json"]
    done = subprocess.run(argv, cwd=ready.folder, env=there, capture_output=True, text=True, check=False)
    [found] = [
        one for one in json.loads(done.stdout)["findings"] if (one["where"], one["severity"]) == ("nodes", "error")
    ]
    assert (done.returncode, found["seen"]) == (1, "the model differs in model.safetensors")


def test_no_weights_on_one_machine(ready: Pair) -> None:
    shutil.rmtree(ready.folder / "models/spark-2/tiny")
    assert "spark-2: the model is not there" in failed(ready.check(6))


def test_an_interface_and_an_address_that_are_not_there(ready: Pair) -> None:
    ready.write(spark_1={"interface": "enp1s0f1np1"}, spark_2={"address": "192.168.177.99"})
    one, two = failed(ready.check(6))[:2]
    assert one == "spark-1: there is no network interface enp1s0f1np1"
    assert two == f"spark-2: {CARD} has the address 192.168.177.212, not 192.168.177.99"


def test_a_machine_that_cannot_be_reached_and_an_image_that_is_missing(ready: Pair) -> None:
    ready.docker("spark-2", "tag", IMAGE, "kept:1")
    ready.docker("spark-2", "rmi", IMAGE)
    try:
        assert failed(ready.check(6)) == [f"spark-2: the image {IMAGE} is not there"]
    finally:
        ready.docker("spark-2", "tag", "kept:1", IMAGE)
    subprocess.run(
        ["docker", "context", "create", "gone", "--docker", "host=ssh://root@10.66.0.99"],
        env=ready.env, check=True, capture_output=True,
    )  # fmt: skip
    ready.write(spark_2={"context": "gone"})
    [message] = failed(ready.check(6))
    assert "10.66.0.99" in message and "image" not in message  # ssh's own words


def test_ports_that_are_blocked_and_one_that_is_taken(ready: Pair) -> None:
    rule = ["INPUT", "-i", CARD, "-p", "tcp", "--syn", "-j", "DROP"]
    inside = ["ip", "netns", "exec", "envgen-node212", "iptables"]
    subprocess.run([*inside, "-A", *rule], check=True)
    words = ["run", "-d", "--name", "taken", "--network", "host", IMAGE, "python3", "-m", "http.server", "29501"]
    ready.docker("spark-1", *words)
    listening = ["ip", "netns", "exec", "envgen-node211", "ss", "-tlnH", "sport = :29501"]
    deadline = time.monotonic() + 60
    while not subprocess.run(listening, capture_output=True, check=True).stdout:
        assert time.monotonic() < deadline, "the server does not listen"
        time.sleep(0.2)
    try:
        found = failed(ready.check(6))
    finally:
        subprocess.run([*inside, "-D", *rule], check=True)
        ready.docker("spark-1", "rm", "-f", "taken")
    assert found == [
        "spark-1: port 29501 is taken (cluster.port)",
        "spark-1+spark-2: spark-1 -> spark-2 (192.168.177.212): a TCP port cannot be reached: timed out",
    ]


def test_one_machine_alone_refuses_a_service_of_two(ready: Pair) -> None:
    assert "envgen nodes up serve" in ready.envgen("up", "serve", code=6).stderr


def test_a_worker_that_dies_takes_all_down(ready: Pair) -> None:
    done = ready.envgen("nodes", "up", "serve")
    assert "serve is ready" in done.stdout
    assert ready.running() == ["spark-1", "spark-2"]
    assert "--headless" in ready.envgen("nodes", "logs").stdout
    assert "runs on spark-1, spark-2 already" in ready.envgen("nodes", "up", code=6).stderr
    ready.envgen("nodes", "down")
    assert ready.running() == []

    argv = [sys.executable, "-m", "envgen", "nodes", "up", "--stay"]
    with subprocess.Popen(argv, cwd=ready.folder, env=ready.env, stderr=subprocess.PIPE, text=True) as staying:
        assert staying.stderr is not None
        lines = []
        for line in staying.stderr:
            lines.append(line)
            if line.startswith("watching"):
                ready.docker("spark-2", "kill", "envgentest-pair-cpu-serve-1")
        assert staying.wait(120) == 5
    assert "spark-2 (rank 1)" in "".join(lines) and "ended with 137" in "".join(lines)
    assert ready.running() == []


def test_a_worker_that_fails_while_it_starts_is_named(ready: Pair) -> None:
    for name in NUMBERS:
        (ready.folder / "models" / name / "tiny/broken").touch()
    try:
        done = ready.envgen("nodes", "up", code=5)
    finally:
        for name in NUMBERS:
            (ready.folder / "models" / name / "tiny/broken").unlink()
    assert "spark-2 (rank 1)" in done.stderr and "HFValidationError" in done.stderr
    assert list((ready.folder / ".envgen/crash").glob("*-serve.tar.gz"))
    assert ready.running() == []


def test_a_machine_that_is_gone_is_named_with_what_to_type(ready: Pair) -> None:
    ready.write(spark_2={"context": "gone"})
    assert "docker --context gone ps" in ready.envgen("nodes", "down", code=3).stderr
