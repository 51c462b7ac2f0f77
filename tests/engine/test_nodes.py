"""Two machines: two real engines in network namespaces of their own, reached by ssh, joined by a cable."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
from pathlib import Path
from typing import Any

import pytest
from local import until
from pair import ADDRESS, CARD, IMAGE, NUMBERS, Pair, failed, staying

from envgen.bench.compare import flags

pytestmark = pytest.mark.engine

CONTAINER = "envgentest-pair-cpu-serve-1"


@pytest.fixture
def ready(machines: Pair) -> Pair:
    """Two machines that fit together, without trouble."""
    machines.write()
    for name in NUMBERS:
        model = machines.folder / "models" / name / "tiny"
        model.mkdir(parents=True, exist_ok=True)
        (model / "config.json").write_text("{}")
        with (model / "model.safetensors").open("wb") as file:
            file.truncate(20 << 20)
    trouble(machines, None)
    return machines


def test_two_machines_that_fit_together(ready: Pair) -> None:
    found = ready.check(0)
    messages = [one["title"].removeprefix("spark-1: ") for one in found]
    assert "the image is the same" in messages  # one store calls it by its manifest, the other by its configuration
    ids = {ready.docker(name, "image", "inspect", IMAGE, "--format", "{{.Id}}") for name in NUMBERS}
    assert len(ids) == 2
    assert "the model is the same: 2 files, large ones by samples" in messages
    assert f"{CARD} has {ADDRESS['spark-1']}, MTU 9000, 10000 Mbit/s" in messages


def test_other_weights_on_one_machine(ready: Pair) -> None:
    with (ready.folder / "models/spark-2/tiny/model.safetensors").open("r+b") as file:
        file.seek(10 << 20)
        file.write(b"other")
    [one] = [one for one in ready.check(6) if one["severity"] == "error"]
    assert one["title"] == "spark-1+spark-2: the model differs in model.safetensors"
    assert one["remedy"]["text"].startswith("rsync -a --checksum --mkpath ")
    subprocess.run(["bash", "-c", one["remedy"]["text"]], env=ready.env, check=True)  # as it is typed
    assert "the model differs in model.safetensors" not in json.dumps(ready.check(0))
    findings = json.loads(ready.envgen("doctor", "--json", code=None).stdout)["findings"]
    assert {one["node"] for one in findings if one["check"].startswith("image.")} == {*NUMBERS}


def test_an_interface_an_address_weights_and_a_folder_that_are_not_there(ready: Pair) -> None:
    shutil.rmtree(ready.folder / "models/spark-2/tiny")
    wrong = {"interface": "enp1s0f1np1", "rdma": ["rocep1s0f1"]}
    ready.write(spark_1=wrong, spark_2={"address": "192.168.177.99"})
    mounts = "services.serve.mounts.extra={host: /nowhere, path: /extra}"
    found = failed(json.loads(ready.envgen("nodes", "check", "--json", "--set", mounts, code=6).stdout)["findings"])
    assert {
        "spark-1: network interface enp1s0f1np1 does not exist",
        "spark-1: RDMA device rocep1s0f1 does not exist",
        f"spark-2: {CARD} has the address {ADDRESS['spark-2']}, not 192.168.177.99",
        "spark-2: /nowhere, which is mounted at /extra, does not exist",
        "spark-2: the model is not there",
    } <= set(found), found


def test_a_machine_that_cannot_be_reached_an_image_that_is_missing_and_one_that_is_older(ready: Pair) -> None:
    ready.docker("spark-2", "tag", IMAGE, "kept:1")
    ready.docker("spark-2", "rmi", IMAGE)
    try:
        found = ready.envgen("nodes", "check", "--set", "apt.runtime=[less]", code=6).stdout
        assert f"spark-1: the image {IMAGE} differs from the profile" in found
        assert f"spark-2: the image {IMAGE} is not there" in found
    finally:
        ready.docker("spark-2", "tag", "kept:1", IMAGE)
    subprocess.run(
        ["docker", "context", "create", "gone", "--docker", "host=ssh://root@10.66.0.99"],
        env=ready.env, check=True, capture_output=True,
    )  # fmt: skip
    ready.write(spark_2={"context": "gone"})
    [message] = failed(ready.check(6))
    assert "10.66.0.99" in message and "image" not in message  # ssh's own words


def test_a_port_that_is_taken(ready: Pair) -> None:
    words = ["run", "-d", "--name", "taken", "--network", "host", IMAGE, "python3", "-m", "http.server", "8000"]
    ready.docker("spark-1", *words)
    listening = ["ip", "netns", "exec", f"envgen-node{NUMBERS['spark-1']}", "ss", "-tlnH", "sport = :8000"]
    until(lambda: subprocess.run(listening, capture_output=True, check=True).stdout)
    try:
        found = failed(ready.check(6))
    finally:
        ready.docker("spark-1", "rm", "-f", "taken")
    assert found == ["spark-1: port 8000 is taken (the service's port)"]


def trouble(pair: Pair, name: str | None) -> None:
    """Put a file of this name, and no other, into both model folders: see SERVER."""
    for node in NUMBERS:
        folder = pair.folder / "models" / node / "tiny"
        for each in ("broken", "leaves"):
            (folder / each).touch() if each == name else (folder / each).unlink(missing_ok=True)


def test_a_machine_that_is_silent_at_first_is_not_left_out(ready: Pair) -> None:
    [dockerd] = [pid for pid in ready.pids("spark-2") if Path(f"/proc/{pid}/comm").read_text() == "dockerd\n"]
    os.kill(dockerd, signal.SIGSTOP)
    later = threading.Timer(8, os.kill, (dockerd, signal.SIGCONT))  # the first connection waits for 5 s
    later.start()
    try:
        assert "spark-2: rank 1 is started" in ready.envgen("up", "serve").stderr
    finally:
        later.join()
        ready.envgen("down")


def test_every_verb_reaches_all_machines(ready: Pair) -> None:
    assert "serve is ready" in ready.envgen("up", "serve").stdout
    assert ready.running() == ["spark-1", "spark-2"]
    noted = {path.name for path in (ready.folder / ".envgen/starts").iterdir()}
    assert noted == {f"cpu.serve.{name}.json" for name in NUMBERS}  # each machine's own
    assert "serve was running already and is ready" in ready.envgen("up", "serve").stdout
    # What measures, looks or reports asks the head, wherever the command is typed.
    record = json.loads(ready.envgen("smoke", "--json").stdout)["record"]
    environment = json.loads(Path(record).read_text().splitlines()[0])["environment"]
    given = flags(environment["flags"])
    assert given["--nnodes"] == "2" and given["--node-rank"] == "0"
    ready.envgen("doctor", "--bundle", "told.tar.gz", code=None)
    with tarfile.open(ready.folder / "told.tar.gz") as archive:
        assert {f"{name}/container.json" for name in NUMBERS} <= set(archive.getnames())
    logs = ready.envgen("logs", "serve").stdout
    assert "spark-1 | " in logs and "spark-2 | " in logs and "--headless" in logs
    assert "--headless" not in ready.envgen("logs", "serve", "--node", "spark-1").stdout
    name = "import os; print(os.environ['VLLM_HOST_IP'])"
    assert ready.envgen("exec", "serve", "python3", "-c", name).stdout.strip() == ADDRESS["spark-1"]
    there = ready.envgen("exec", "--node", "spark-2", "serve", "python3", "-c", name)
    assert there.stdout.strip() == ADDRESS["spark-2"]
    argv = [sys.executable, "-m", "envgen", "exec", "--node", "spark-2", "serve", "sh"]
    typed = "echo $VLLM_HOST_IP\n"
    shell = subprocess.run(
        argv, cwd=ready.folder, env=ready.env, input=typed, capture_output=True, text=True, check=True
    )
    assert shell.stdout.strip() == ADDRESS["spark-2"]

    def shown() -> list[str]:  # `status` waits 2.5 s for a machine
        return [row["node"] for row in json.loads(ready.envgen("status", "--json").stdout)["containers"]]

    until(lambda: shown() == [*NUMBERS])
    changed = ready.envgen("up", "serve", "--set", "services.serve.args.max-model-len=64", code=6).stderr
    assert "spark-1: command: " in changed and "spark-2: command: " in changed

    # The same project on another laptop: whose containers are there holds it, on each engine.
    other = ready.folder / "other"
    other.mkdir()
    for file in ("envgen.yaml", "envgen.local.yaml"):
        shutil.copy(ready.folder / file, other)
    refused = ready.envgen("up", "serve", code=6, cwd=other).stderr
    assert f"spark-1: envgentest-pair-cpu belongs to {ready.folder};" in refused
    assert "docker compose -p envgentest-pair-cpu down" in ready.envgen("down", code=6, cwd=other).stderr

    assert "serve is ready" in ready.envgen("restart", "serve").stdout
    stopped = ready.envgen("stop", "serve").stdout
    assert stopped == "".join(f"container {name}: {CONTAINER} stopped\n" for name in NUMBERS)
    assert ready.running() == []
    assert "serve is ready" in ready.envgen("restart", "serve").stdout
    assert ready.running() == ["spark-1", "spark-2"]
    ready.docker("spark-2", "rm", "-f", CONTAINER)
    assert "it runs on spark-1 alone" in ready.envgen("up", "serve", code=6).stderr
    assert ready.envgen("down", "serve").stdout == f"container spark-1: {CONTAINER} removed\n"
    assert ready.running() == []


def bundle(text: str, folder: Path) -> dict[str, Any]:
    """What the crash bundle says that is named in an error."""
    path = next(line.split("crash bundle: ")[1] for line in text.splitlines() if "crash bundle: " in line)
    with tarfile.open(folder / path) as archive:
        names = archive.getnames()
        findings = archive.extractfile("findings.json")
        assert findings is not None
        return {**json.load(findings), "names": names}


def test_a_worker_that_ends_takes_all_down(ready: Pair) -> None:
    with staying(ready) as one:
        one.sees("watching serve")
        trouble(ready, "leaves")  # with code 0
        text = one.ends()
    assert "spark-2 (rank 1): serve has failed: its process exited with code 0" in text
    findings = bundle(text, ready.folder)
    assert findings["culprit"] == "spark-2"
    assert {"spark-1/server.log", "spark-2/server.log", "findings.json"} <= set(findings["names"])
    assert ready.running() == []


def test_a_machine_that_is_switched_off(ready: Pair) -> None:
    rule = ["INPUT", "-i", "eth0", "-j", "DROP"]
    with staying(ready) as one:
        one.sees("watching serve")
        ready.inside("spark-2", "iptables", "-A", *rule)
        ready.inside("spark-2", "ip", "link", "set", CARD, "down")
        try:
            text = one.ends()
            down = ready.envgen("down", code=3).stderr
        finally:
            ready.inside("spark-2", "iptables", "-D", *rule)
            ready.inside("spark-2", "ip", "link", "set", CARD, "up")
    assert "spark-2 (rank 1): serve has failed: its engine has not answered for 10 s" in text
    command = "docker ps -aq --filter label=com.docker.compose.project=envgentest-pair-cpu | xargs -r docker rm -f"
    assert f"or on spark-2 itself: {command}" in text and f"or on spark-2 itself: {command}" in down
    assert "spark-2/no-engine.txt" in bundle(text, ready.folder)["names"]
    assert ready.running() == ["spark-2"]
    ready.envgen("down")
    assert ready.running() == []


def test_a_worker_that_fails_while_it_starts_is_named(ready: Pair) -> None:
    trouble(ready, "broken")
    done = ready.envgen("up", "serve", code=5)
    assert "spark-2 (rank 1): serve is not ready" in done.stderr and "HFValidationError" in done.stderr
    assert bundle(done.stderr, ready.folder)["culprit"] == "spark-2"
    assert ready.running() == []
