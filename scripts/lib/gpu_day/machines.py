"""Step: two engines with one GPU each, as two machines."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from argparse import Namespace
from pathlib import Path
from typing import Any

import yaml

from gpu_day.change import answers, until
from gpu_day.day import ENVGEN, Day, NotRun, Rows, step
from gpu_day.models import NAME

# Both machines are this one: each engine makes a bridge of its own, whose address is the machine's.
NODES = {"a": "10.98.1.1", "b": "10.98.2.1"}
STARTED = 900.0  # seconds at most


def paired(day: Day) -> Day:
    """The same day in a project of its own, whose service has two machines: this engine and
    --second-engine.
    """
    folder = day.work / "pair"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(day.project, folder, ignore=shutil.ignore_patterns(".envgen", "results"))
    first = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    for name, host in zip(NODES, (first, day.options.second_engine), strict=True):
        day.docker("context", "rm", "-f", f"gpu-day-{name}")
        day.docker("context", "create", f"gpu-day-{name}", "--docker", f"host={host}")
    project = yaml.safe_load((folder / "envgen.yaml").read_text())
    project["name"] = f"{NAME}-pair"
    (folder / "envgen.yaml").write_text(yaml.safe_dump(project, sort_keys=False))
    path = folder / "envgen.local.yaml"
    own: dict[str, Any] = yaml.safe_load(path.read_text())
    nodes = {
        name: {"context": f"gpu-day-{name}", "address": address, "interface": f"gpuday-{name}"}
        for name, address in NODES.items()
    }
    own["defaults"] = {"nodes": nodes}
    service = own["profiles"][day.profile]["services"][day.service]
    service["restart"] = "no"
    # One host takes both for processes of one machine, which two hosts never do.
    own["profiles"][day.profile] |= {"ipc": "private", "shm_size": "2g"}
    apart = {"NCCL_P2P_DISABLE": 1, "NCCL_SHM_DISABLE": 1}
    service["env"] = {**service.get("env", {}), **apart}
    service["cluster"] = {"nodes": list(NODES)}
    service["args"] |= {"tensor-parallel-size": 2, "gpu-memory-utilization": 0.3}
    service["ports"] = ["127.0.0.1:8000:8000"]
    path.write_text(yaml.safe_dump(own, sort_keys=False))
    return Day(Namespace(**{**vars(day.options), "project": str(folder)}))


def _cable(mine: Day, name: str) -> None:
    """The network interface of a machine; a container that sleeps keeps it running."""
    engine = ("--context", f"gpu-day-{name}")
    _uncable(mine, name)
    subnet = NODES[name].rpartition(".")[0] + ".0/24"
    bridge = ("-o", f"com.docker.network.bridge.name=gpuday-{name}", "--subnet", subnet)
    mine.docker(*engine, "network", "create", *bridge, "gpu-day-cable")
    sleeper = ("--name", "gpu-day-cable", "--network", "gpu-day-cable", "--entrypoint", "sleep")
    mine.docker(*engine, "run", "-d", *sleeper, mine.settings.image_name, "infinity")


def _uncable(mine: Day, name: str) -> None:
    engine = ("--context", f"gpu-day-{name}")
    mine.docker(*engine, "rm", "-f", "gpu-day-cable")
    mine.docker(*engine, "network", "rm", "gpu-day-cable")


def _stays(pair: Day, log: Path) -> subprocess.Popen[bytes]:
    command = [*ENVGEN, "up", "-p", pair.profile, pair.service, "--stay"]
    with log.open("wb") as out:
        return subprocess.Popen(command, cwd=pair.project, stdout=out, stderr=out)


def _containers(pair: Day) -> dict[str, str]:
    """Machine -> its running container."""
    found = {}
    for name in NODES:
        ours = f"label=com.docker.compose.project={pair.settings.compose_name}"
        words = ("--context", f"gpu-day-{name}", "ps", "-q", "--filter", ours)
        found[name] = pair.docker(*words).out.strip()
    return found


@step("pair", "two engines with one GPU each, as two machines; a killed rank (--second-engine)")
def pair(day: Day, rows: Rows) -> None:
    if day.foreign or not day.options.second_engine:
        raise NotRun("name an engine that has another GPU: --second-engine unix:///run/b.sock")
    day.envgen("down")
    mine = paired(day)
    built = mine.envgen("build", "--unlocked", timeout=3600)
    rows.add("its image", built.code == 0, built.last, "exit 0", built.seconds)
    other = f"docker --context gpu-day-b image inspect {mine.settings.image_name}"
    copy = f"docker save {mine.settings.image_name} | docker --context gpu-day-b load"
    copied = mine.run(["bash", "-c", f"set -o pipefail; {copy}; {other} >/dev/null"])
    rows.add("the image on the other engine", copied.code == 0, copied.last, "", copied.seconds)
    for name in NODES:
        _cable(mine, name)
    checked = mine.envgen("nodes", "check", "--json")
    found = checked.document.get("findings", [])
    bad = [one["title"] for one in found if one["severity"] in ("error", "warning")]
    seen = f"{len(found) - len(bad)} passed; {bad}"
    rows.add("nodes check", checked.code == 0, seen, "exit 0", checked.seconds)
    asked = mine.envgen("predict", mine.service, "--json")
    gpu = asked.document.get("gpu") or {}
    refusals = asked.document.get("refusals")
    is_taken = asked.code == 0 and not refusals
    rows.add("predict", is_taken, f"{gpu.get('name')}, {refusals or asked.last}", "", asked.seconds)
    if _killed(mine, rows, "b", "the worker"):
        _killed(mine, rows, "a", "the head")
    rows.data["check"] = json.loads(checked.out) if checked.out.startswith("{") else checked.out
    mine.envgen("down")
    for name in NODES:
        _uncable(mine, name)


def _killed(mine: Day, rows: Rows, name: str, rank: str) -> bool:
    """Serve with both machines, kill the container of one, and see how both end."""
    log = mine.work / "logs" / f"pair-{name}.log"
    process = _stays(mine, log)
    try:
        ready = until(lambda: process.poll() is not None or "is ready" in log.read_text(), STARTED)
        is_ready = process.poll() is None and answers(mine)
        seen = log.read_text()[-300:]
        if not rows.add("up --stay, with predict", is_ready, seen, "an answer of both", ready):
            return False
        mine.docker("--context", f"gpu-day-{name}", "kill", _containers(mine)[name])
        ended = until(lambda: process.poll() is not None, 120)
        told = " | ".join(log.read_text().strip().splitlines()[-12:])
        left = {node: one for node, one in _containers(mine).items() if one}
        is_told = process.returncode == 5 and not left
        seen = f"exit {process.returncode}, running {left}; {told}"
        return rows.add(f"{rank} is killed", is_told, seen, "exit 5, all stopped", ended)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(120)
