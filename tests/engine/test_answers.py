"""Answers of the real vLLM for CPUs: the same twice, close in another precision, and faults in a running server.

One more server (data/spoil.py makes its model): its faults are put into it while it runs.
"""

from __future__ import annotations

import json
import re
import shlex
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cpu_server import CpuServer, free_port
from projects import docker, interrupt

pytestmark = pytest.mark.engine

CPU, QUICK = ("-p", "cpu"), ("--quick", "--json")
SPOIL = Path(__file__).with_name("data") / "spoil.py"


class Wide:
    """The service `wide` of the project."""

    def __init__(self, server: CpuServer, port: int) -> None:
        self.project, self.url = server.project, f"http://127.0.0.1:{port}"

    def spoil(self, method: str, value: str) -> str:
        body = json.dumps({"method": method, "args": [value]}).encode()
        request = urllib.request.Request(f"{self.url}/collective_rpc", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            return str(json.load(reply)["results"][0])

    def answers(self, *words: str, code: int | None = 0) -> dict[str, Any]:
        found: dict[str, Any] = self.project.envgen("answers", "wide", *CPU, *QUICK, *words, code=code).json
        return found

    def record(self, found: dict[str, Any]) -> str:
        first = json.loads(Path(found["record"]).read_text(encoding="utf-8").splitlines()[0])
        return str(first["id"])


@pytest.fixture(scope="module")
def wide(cpu_server: CpuServer) -> Iterator[Wide]:
    """The server under way, with what its variants change."""
    project, port = cpu_server.project, free_port()
    (project.root / "models" / "spoil.py").write_text(SPOIL.read_text(encoding="utf-8"), encoding="utf-8")
    docker("exec", "-w", "/models", cpu_server.container, "python3", "spoil.py")
    file = project.root / "envgen.yaml"
    before = file.read_bytes()
    given = yaml.safe_load(before)
    profile = given["profiles"]["cpu"]
    serve = profile["services"]["serve"]
    own = {
        "dtype": "float32",
        "model": "/models/wide",
        "served-model-name": "wide",
        "worker-extension-cls": "spoil.Spoil",
    }
    profile["services"]["wide"] = {
        **serve, "args": {**serve["args"], **own}, "ports": [f"127.0.0.1:{port}:8000"],
        "health": {**serve["health"], "interval": "60s"}, "ready": {**serve["ready"], "model": "wide"},
        "working_dir": "/models", "env": {"VLLM_SERVER_DEV_MODE": 1},
    }  # fmt: skip
    (project.root / "models" / "other.jinja").write_text(
        "{% for m in messages %}[INST] {{ m.content }} [/INST]{% endfor %}"
    )
    profile["variants"] = {
        "fp16": {"services": {"wide": {"args": {"dtype": "float16"}}}},
        "template": {"services": {"wide": {"args": {"chat-template": "/models/other.jinja"}}}},
        "broken": {"services": {"wide": {"args": {"max-model-len": 100_000}}}},
    }
    file.write_text(yaml.safe_dump(given, sort_keys=False), encoding="utf-8")
    project.envgen("up", "wide", *CPU)
    yield Wide(cpu_server, port)
    project.envgen("down", "wide", *CPU, code=None)
    file.write_bytes(before)


def test_the_same_server_twice(cpu_server: CpuServer) -> None:
    envgen = cpu_server.project.envgen
    assert envgen("answers", "serve", *CPU, *QUICK).json["outcome"] in ("same", "close")
    again = envgen("answers", "serve", *CPU, *QUICK, "--against", "latest").json
    assert again["outcome"] == "same"
    assert {row["name"]: row["verdict"] for row in again["rows"]}["texts"] == "same"


@pytest.mark.nightly
def test_faults_in_a_running_server(wide: Wide) -> None:
    good = wide.record(wide.answers())
    assert wide.answers("--against", good)["outcome"] == "same"

    wide.spoil("scale", "1.125")  # one layer's weights
    assert wide.answers("--against", good, code=1)["outcome"] == "different"
    wide.spoil("scale", "2")
    assert wide.answers("--against", good, code=5)["outcome"] == "broken"
    wide.spoil("scale", str(1 / 2.25))

    assert wide.spoil("window", "-1") == "{64}"
    assert wide.answers("--against", good, code=None)["outcome"] in ("different", "broken")
    wide.spoil("window", "64")

    wide.spoil("sinks", "4")  # a model that has them
    sinking = wide.record(wide.answers())
    wide.spoil("sinks", "none")
    assert wide.answers("--against", sinking, code=None)["outcome"] in ("different", "broken")

    assert wide.answers("--against", good)["outcome"] == "same"
    assert wide.answers("--against", wide.url)["outcome"] == "same"


@pytest.mark.nightly
def test_a_sweep_that_is_interrupted_and_continued(wide: Wide) -> None:
    """Two variants are measured, the third is interrupted, then fails. What ran before runs again."""
    bench = ("--tool", "vllm", "--pp", "16", "--tg", "8", "-r", "1")
    words = ("sweep", "wide", *CPU, "--variants", "fp16,template,broken", "--quick", *bench, "--yes")
    child = wide.project.start(*words)
    assert child.stderr
    while "broken (3 of 3)" not in child.stderr.readline():
        assert child.poll() is None
    stopped = interrupt(child)
    assert stopped.code == 130 and "envgen up wide" in stopped.err
    done = wide.project.envgen(*words, "--json", code=1)
    assert "fp16, template done" in done.err and "starting again what ran before" in done.err
    fp16, template, broken = done.json["rows"]
    assert fp16["verdict"] in ("same", "close") and not fp16["cause"] and fp16["figures"]["decode t/s"] > 0
    assert template["verdict"] == "different" and not template["cause"]  # the same weights, read with other tokens
    assert broken["cause"] and not broken["verdict"]
    matrix = (Path(done.json["record"]).with_name("matrix.md")).read_text(encoding="utf-8")
    assert "| variant | release | day |" in matrix and "| different |" in matrix
    found = wide.answers("--against", fp16["answers"])  # what runs now is FP32
    assert found["outcome"] == "close" and any(line.startswith("flags.--dtype") for line in found["differing"])
    # What has no row yet is measured, and nothing else.
    missing = wide.project.envgen("sweep", "wide", *CPU, "--missing", "--quick", *bench, "--yes", "--json", code=1)
    assert [(row["variant"], bool(row["cause"])) for row in missing.json["rows"]] == [
        ("plain", False),
        ("broken", True),
    ]
    shown = wide.project.envgen("sweep", "wide", *CPU, "--dry-run", *bench[2:6], "--json").json["rows"]
    assert {row["variant"] for row in shown if not row["run"]} == {"broken"}
    # The command of a row starts it, as it is typed.
    (start,) = set(re.findall(r"`(envgen up wide .*--variant fp16)`", matrix))
    wide.project.envgen("down", "wide", *CPU)
    assert wide.project.envgen(*shlex.split(start)[1:], "--json").json["variant"] == "fp16"
    wide.project.envgen("up", "wide", *CPU, "--recreate")


@pytest.mark.nightly
def test_against_a_variant_that_is_started_for_it(wide: Wide) -> None:
    for words in (("answers", "wide", "--against", "fp16"), ("sweep", "wide", "--variants", "fp16"), ("trace", "wide")):
        assert "add --yes" in wide.project.envgen(*words, *CPU, code=6).err
    found = wide.answers("--against", "fp16", "--yes")
    assert found["outcome"] == "close" and found["reference"]["title"] == "cpu fp16"
    assert any(line.startswith("flags.--dtype") for line in found["differing"])
