"""`envgen nodes push`: from one engine to another, whose image store is another one, too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from pair import IMAGE, NUMBERS, Pair

from envgen.profile.load import load_project
from envgen.render.environment import overlay_volume

pytestmark = pytest.mark.engine

NAME = "envgentest-push:cpu"
START = IMAGE  # on both machines from the beginning


@pytest.fixture(scope="module")
def pair(machines: Pair) -> Pair:
    """Another project on the machines of test_nodes.py."""
    folder = machines.folder / "push"
    folder.mkdir()
    for node in NUMBERS:
        for container in machines.docker(node, "ps", "-aq").split():
            machines.docker(node, "rm", "-f", container)
    service = {
        "command": ["vllm", "serve", "/models/tiny"], "args": {"tensor-parallel-size": 2},
        "ports": ["8000:8000"], "cluster": {"nodes": ["spark-1", "spark-2"]},
    }  # fmt: skip
    profile = {
        "mode": "production", "base": {"image": START}, "cuda": {"arch_list": "12.1a"}, "gpu": "none",
        "caches": {"models": {"path": "/models", "host": "./models"}}, "services": {"serve": service},
    }  # fmt: skip
    development = {
        **profile, "mode": "development", "image": NAME,
        "sources": {
            "vllm": {
                "origin": {"checkout": "./vllm"}, "mount": "/workspace/vllm", "package": "vllm",
                "distribution": "vllm",
            }
        },
    }  # fmt: skip
    project = {
        "version": 1, "name": "envgentest-push", "default_profile": "cpu",
        "profiles": {"cpu": profile, "dev": development},
    }  # fmt: skip
    (folder / "envgen.yaml").write_text(yaml.safe_dump(project))
    made = replace(machines, folder=folder)
    made.write()
    return made


def changed(pair: Pair, megabytes: int) -> None:
    """One more layer on the first machine, as a build makes it."""
    last = pair.docker("spark-1", "images", "-q", NAME).strip() or START
    with_layer(pair, "spark-1", last, megabytes)


def with_layer(pair: Pair, node: str, image: str, megabytes: int) -> None:
    script = f"import os; open('/changed', 'wb').write(os.urandom({megabytes}000000))"
    pair.docker(node, "run", "--name", "changed", image, "python3", "-c", script)
    pair.docker(node, "commit", "changed", NAME)
    pair.docker(node, "rm", "changed")


def push(pair: Pair, *words: str, code: int = 0) -> dict[str, Any]:
    [row] = json.loads(pair.envgen("nodes", "push", "--image", "--json", *words, code=code).stdout)["pushed"]
    found: dict[str, Any] = row
    return found


def layers(pair: Pair, node: str) -> str:
    return pair.docker(node, "image", "inspect", NAME, "--format", "{{.RootFS.Layers}}")


def names(pair: Pair, node: str) -> set[str]:
    return set(pair.docker(node, "images", "--format", "{{.Repository}}:{{.Tag}}").split()) & {START, NAME}


def test_only_the_layers_that_are_missing_are_sent(pair: Pair) -> None:
    assert "envgen build" in pair.envgen("nodes", "push", "--image", code=6).stderr
    changed(pair, 3)
    assert push(pair, "--dry-run")["state"] == "to send"
    assert names(pair, "spark-2") == {START}
    first = push(pair)
    assert (first["state"], first["detail"]) == ("sent", "1 of 2 layers")
    assert 3_000_000 < first["bytes"] < 4_000_000
    assert layers(pair, "spark-1") == layers(pair, "spark-2")
    pair.docker("spark-2", "run", "--rm", NAME, "sh", "-c", "test -s /changed")
    assert push(pair)["state"] == "same"
    changed(pair, 1)
    assert push(pair)["detail"] == "1 of 3 layers"
    # The image of before is gone with its name, and what was used on the way has no name any more.
    assert names(pair, "spark-2") == {START, NAME}
    assert pair.docker("spark-2", "images", "-q", "--filter", "dangling=true") == ""


def children(parent: int) -> Iterator[Path]:
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if int((place / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                yield place


def test_a_push_that_is_cut_off_leaves_the_image_of_before_and_starts_again(pair: Pair) -> None:
    before = layers(pair, "spark-2")
    changed(pair, 60)
    argv = [sys.executable, "-m", "envgen", "nodes", "push", "--image"]
    with subprocess.Popen(argv, cwd=pair.folder, env=pair.env, stderr=subprocess.PIPE, text=True) as pushing:
        assert pushing.stderr is not None
        said = []
        for line in pushing.stderr:
            said.append(line)
            if "sending" in line:
                for child in children(pushing.pid):
                    if f"10.66.0.{NUMBERS['spark-2']}".encode() in (child / "cmdline").read_bytes():
                        os.kill(int(child.name), signal.SIGKILL)
        assert pushing.wait(60) == 3, said
    assert layers(pair, "spark-2") == before
    assert names(pair, "spark-2") == {START, NAME}
    end = time.monotonic() + 60  # what read the layers ends when envgen is gone
    while pair.docker("spark-1", "ps", "-aq") and time.monotonic() < end:
        time.sleep(0.5)
    assert pair.docker("spark-1", "ps", "-aq") == ""
    assert push(pair)["state"] == "sent"
    assert layers(pair, "spark-1") == layers(pair, "spark-2")


def test_layers_that_the_other_store_has_in_another_form_are_sent(pair: Pair) -> None:
    # What was pulled from a registry is kept compressed there, and has other digests.
    pair.docker("spark-1", "rmi", "-f", NAME)
    pair.docker("spark-2", "rmi", "-f", NAME)
    with_layer(pair, "spark-2", START, 2)
    archive = pair.folder / "compressed.tar"
    pair.docker("spark-2", "save", "-o", str(archive), NAME)
    pair.docker("spark-1", "load", "-q", "-i", str(archive))
    archive.unlink()
    changed(pair, 1)
    found = push(pair)
    assert (found["state"], found["detail"]) == ("sent", "all of 3 layers")
    assert layers(pair, "spark-1") == layers(pair, "spark-2")
    assert (
        len(
            subprocess.run(
                ["docker", "--context", "spark-2", "save", NAME], env=pair.env, capture_output=True, check=True
            ).stdout
        )
        > 3_000_000
    )


def test_a_disk_that_fills_and_the_other_way_round(pair: Pair) -> None:
    """From containerd's store to Docker's own, which writes what it loads aside first."""
    pair.docker("spark-2", "rmi", "-f", NAME)
    with_layer(pair, "spark-2", START, 4)
    words = ["--set", "services.serve.cluster.nodes=[spark-2, spark-1]"]
    aside = str(pair.folder.parent / "spark-1/data/tmp")
    inside = ["nsenter", "--mount", "--target", (pair.folder.parent / "spark-1/docker.pid").read_text().strip()]
    before = names(pair, "spark-1")
    subprocess.run([*inside, "mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", aside], check=True)
    try:
        full = push(pair, *words, code=3)
    finally:
        subprocess.run([*inside, "umount", aside], check=True)
    assert "no space left" in full["detail"]
    assert full["hint"] == "make room there: docker --context spark-1 image prune"
    assert names(pair, "spark-1") == before
    found = push(pair, *words)
    assert (found["state"], found["detail"]) == ("sent", "1 of 2 layers")
    assert layers(pair, "spark-1") == layers(pair, "spark-2")
    pair.docker("spark-1", "run", "--rm", NAME, "sh", "-c", "test -s /changed")


def test_the_weights_go_over_the_cable(pair: Pair) -> None:
    weights = pair.folder / "models/spark-1/tiny/model.safetensors"
    weights.parent.mkdir(parents=True)
    weights.write_bytes(os.urandom(10_000_000))
    argv = ["nodes", "push", "--model", "--json"]
    for state in ("sent", "same"):
        [found] = json.loads(pair.envgen(*argv).stdout)["pushed"]
        assert (found["what"], found["state"]) == ("model", state)
    assert (pair.folder / "models/spark-2/tiny/model.safetensors").read_bytes() == weights.read_bytes()


def test_what_is_installed_of_checkouts_is_sent(pair: Pair) -> None:
    (pair.folder / "vllm").mkdir()
    (pair.folder / "vllm/vllm.py").touch()
    profile = load_project(file=pair.folder / "envgen.yaml", environ={}).project.profiles["dev"]
    volume = overlay_volume(profile)
    pair.docker("spark-1", "run", "--rm", "-v", f"{volume}:/env", START, "sh", "-c", "echo 1 >/env/vllm.pth")
    argv = ["nodes", "push", "-p", "dev", "--sources", "--json"]
    for words, state in ((["--dry-run"], "to send"), ([], "sent"), ([], "same")):
        found = json.loads(pair.envgen(*argv, *words).stdout)["pushed"]
        # Both machines have the same folder here, and each a volume of its own.
        assert [(one["what"], one["state"]) for one in found] == [("checkout vllm", "same"), ("overlay", state)]
    assert pair.docker("spark-2", "run", "--rm", "-v", f"{volume}:/env", START, "cat", "/env/vllm.pth") == "1\n"
    shown = pair.docker("spark-2", "volume", "inspect", volume, "--format", "{{json .Labels}}")
    assert json.loads(shown)["dev.envgen.folder"] == str(pair.folder)


def test_a_machine_that_cannot_be_reached(pair: Pair) -> None:
    subprocess.run(
        ["docker", "context", "create", "away", "--docker", "host=ssh://root@10.66.0.99"],
        env=pair.env, check=True, capture_output=True,
    )  # fmt: skip
    pair.write(spark_2={"context": "away"})
    assert "10.66.0.99" in push(pair, code=3)["detail"]
