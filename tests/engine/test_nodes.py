"""Two machines: two real engines in network namespaces of their own, reached by ssh, joined by a cable."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from projects import BASE, docker

from envgen.engine.base import Engine
from envgen.engine.endpoint import config_dir

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[2]
IMAGE = "envgentest-pair:cpu"
NUMBERS = {"spark-1": 211, "spark-2": 212}
CARD = "enp1s0f0np0"
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
# A Python and its libraries: a copy of the whole base would take a minute a machine.
SMALL = (
    "cd /; tar -c bin lib lib64 usr/lib64 usr/bin/python3 usr/bin/python3.1[0-9] usr/bin/env usr/bin/sleep usr/bin/dash"
    " usr/bin/sh usr/lib/python3.1[0-9] etc/ld.so.cache etc/passwd"
    ' $(find -L usr/lib/*-linux-gnu -maxdepth 1 -name "*.so*" -type f -size -8M)'
)


@dataclass(frozen=True)
class Pair:
    """Two machines and a project on a third, which reaches them by the contexts ``spark-1`` and ``spark-2``."""

    folder: Path
    env: dict[str, str]

    def machine(self, name: str) -> dict[str, Any]:
        return {
            "context": name, "address": f"192.168.177.{NUMBERS[name]}", "interface": CARD,
            "caches": {"models": str(self.folder / "models" / name)},
        }  # fmt: skip

    def write(self, **changes: dict[str, Any]) -> None:
        """The local file; ``spark_2={"interface": "eth7"}`` changes a key of a machine."""
        nodes = {name: {**self.machine(name), **changes.get(name.replace("-", "_"), {})} for name in NUMBERS}
        (self.folder / "envgen.local.yaml").write_text(yaml.safe_dump({"defaults": {"nodes": nodes}}))

    def envgen(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "envgen", *words]
        done = subprocess.run(argv, cwd=self.folder, env=self.env, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def running(self) -> list[str]:
        """The machines where the service runs."""
        rows = json.loads(self.envgen("nodes", "ps", "--json").stdout)
        return [row["node"] for row in rows if row["state"] == "running"]

    def check(self, code: int) -> list[dict[str, Any]]:
        """`envgen nodes check --json`: its findings."""
        found: list[dict[str, Any]] = json.loads(self.envgen("nodes", "check", "--json", code=code).stdout)["findings"]
        return found

    def docker(self, node: str, *words: str) -> str:
        return subprocess.run(
            ["docker", "--context", node, *words], env=self.env, capture_output=True, text=True, check=True
        ).stdout


def failed(found: list[dict[str, Any]]) -> list[str]:
    return [f"{'+'.join(one['nodes'])}: {one['message']}" for one in found if one["level"] == "fail"]


@pytest.fixture(scope="module")
def pair(engine: Engine) -> Iterator[Pair]:
    folder = Path(f"/tmp/envgentest-pair-{os.getpid()}")
    config = folder / "docker"
    (config / "cli-plugins").mkdir(parents=True)
    for program in (config_dir(os.environ) / "cli-plugins").iterdir():
        (config / "cli-plugins" / program.name).symlink_to(program.resolve())
    env = {key: value for key, value in os.environ.items() if key not in ("DOCKER_HOST", "DOCKER_CONTEXT")}
    env |= {"DOCKER_CONFIG": str(config), "PATH": f"{folder}/bin:{os.environ['PATH']}"}
    made = Pair(folder, env)
    small = folder / "small.tar"
    try:
        with small.open("wb") as file:
            argv = ["docker", "run", "--rm", "--entrypoint", "sh", BASE, "-c", SMALL]
            subprocess.run(argv, stdout=file, check=True)
        with tarfile.open(small, "a") as archive:
            member = tarfile.TarInfo("usr/local/bin/vllm")
            member.size, member.mode = len(SERVER.encode()), 0o755
            archive.addfile(member, io.BytesIO(SERVER.encode()))
        docker("import", "--change", "ENV PATH=/usr/local/bin:/usr/bin:/bin", str(small), IMAGE)
        docker("save", "-o", str(small), IMAGE)
        docker("rmi", IMAGE)
        hosts = []
        for name, number in NUMBERS.items():
            place = folder / name
            up = [str(ROOT / "scripts/engine"), "--dir", str(place), "--netns", str(number)]
            if name == "spark-2":  # another image store: ids differ there, contents don't
                (place / "ssh").mkdir(parents=True)
                (place / ".envgen-engine").touch()
                (place / "daemon.json").write_text('{"features": {"containerd-snapshotter": true}}')
            subprocess.run([*up, "up"], check=True, capture_output=True)
            address = f"10.66.0.{number}"
            hosts.append(
                f"Host {address}\n  IdentityFile {place}/ssh/user\n  UserKnownHostsFile {place}/ssh/known_hosts\n"
            )
            subprocess.run(
                ["docker", "context", "create", name, "--docker", f"host=ssh://root@{address}"],
                env=env, check=True, capture_output=True,
            )  # fmt: skip
        (folder / "ssh_config").write_text("".join(hosts))
        wrapper = folder / "bin" / "ssh"  # stands in for ~/.ssh/config, which is the tester's own
        wrapper.parent.mkdir()
        wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n')
        wrapper.chmod(0o755)
        for name in NUMBERS:
            made.docker(name, "load", "-q", "-i", str(small))
        project(folder)
        yield made
    finally:
        for name in NUMBERS:
            subprocess.run([str(ROOT / "scripts/engine"), "--dir", str(folder / name), "down", "--purge"], check=False)
        shutil.rmtree(folder)


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
