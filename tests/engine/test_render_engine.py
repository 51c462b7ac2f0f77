"""Rendered files before Docker's own checkers, and what bake reads beside what envgen asks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from projects import BASE
from projects import ran as docker

from envgen.engine.compose import Compose
from envgen.engine.endpoint import find_endpoint
from envgen.profile.load import load_project
from envgen.profile.model import GpuMode
from envgen.render.outputs import render_project, write

pytestmark = pytest.mark.engine

TOP = Path(__file__).resolve().parents[2]
PROJECTS = [TOP, *sorted(path.parent for path in (TOP / "tests/golden/projects").glob("*/envgen.yaml"))]
PROJECTS += sorted(path.parent for path in (TOP / "examples").glob("*/envgen.yaml"))
# What envgen's own file for a machine of a cluster sets.
MACHINE = {
    "ENVGEN_NODE_RANK": "0", "ENVGEN_HEAD_ADDRESS": "192.168.177.11", "ENVGEN_NODE_ADDRESS": "192.168.177.11",
    "ENVGEN_NODE_INTERFACE": "enp1s0f0np0", "ENVGEN_NODE_RDMA": "rocep1s0f0",
}  # fmt: skip


@pytest.mark.parametrize("folder", PROJECTS, ids=lambda path: path.name)
def test_docker_finds_nothing_to_complain_about(folder: Path, tmp_path: Path) -> None:
    project = load_project(file=folder / "envgen.yaml", local=False).project
    files = render_project(project)
    write(tmp_path, files)
    for path in files:
        if path.startswith("Dockerfile"):
            # A base that is not here can't be looked up; the checker reads the rest anyway.
            text = files[path].decode()
            (tmp_path / path).write_text(
                re.sub(
                    r"^FROM ((registry\.example|nvcr\.io|example\.org|vllm)/\S+|debian:\S+)",
                    f"FROM {BASE}",
                    text,
                    flags=re.M,
                )
            )
            done = docker("buildx", "build", "--check", "-f", str(tmp_path / path), str(tmp_path), check=False)
            assert "no warnings found" in done.stdout + done.stderr, done.stdout + done.stderr
        elif path.startswith("compose/"):
            # What a machine of a cluster adds goes with the file of its profile.
            profile = tmp_path / "compose" / f"{Path(path).name.partition('.')[0]}.yaml"
            chosen = [word for file in dict.fromkeys((profile, tmp_path / path)) for word in ("-f", str(file))]
            done = docker("compose", *chosen, "--profile", "*", "config", "--format", "json", env=MACHINE)
            assert done.stderr == ""
            described = project.profiles[Path(path).name.partition(".")[0]]
            for name, service in json.loads(done.stdout)["services"].items():
                devices = service.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices", [])
                asks = any("gpu" in device["capabilities"] for device in devices)
                assert asks == (described.gpu is not GpuMode.NONE and described.services[name].gpu != ()), name


def test_the_files_name_the_project_whatever_the_shell_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the shell's name envgen would look for its containers in vain, and leave them."""
    monkeypatch.setenv("COMPOSE_PROJECT_NAME", "other")
    file = tmp_path / "compose.yaml"
    file.write_text("name: ours\nservices: {a: {image: x}}\n", encoding="utf-8")
    shown = Compose(find_endpoint(), [file], tmp_path, "ours").run("config", "--format", "json").stdout
    assert json.loads(shown)["name"] == "ours"
