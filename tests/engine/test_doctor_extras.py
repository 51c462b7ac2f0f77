"""doctor --bundle, an import, and the check of kernels: real containers, the real FlashInfer 0.5.3."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jit_lab import SITE, Lab
from planted import PLANTED
from projects import Project, docker

from envgen.engine.client import Engine

pytestmark = pytest.mark.engine

FILE = """
profiles:
  dev:
    mode: development
    working_dir: /
    secrets: [HF_TOKEN, PLAIN_SECRET_VALUE]
    services: {dev: {command: [sleep, infinity]}}
"""
SECRETS = {"HF_TOKEN": "hf_InTheContainer0123456789", "PLAIN_SECRET_VALUE": "only-words-here"}


@pytest.fixture(scope="module")
def project(make_project: Callable[..., Project]) -> Project:
    return make_project("envgentestmore", FILE)


@pytest.fixture
def box(project: Project) -> Project:
    """The same with a container."""
    project.envgen("up", "dev", "--build", "--no-wait", env=SECRETS)
    return project


def findings(project: Project, check: str, *words: str) -> list[dict[str, Any]]:
    document = project.envgen("doctor", *words, "--json", code=None).json
    return [one for one in document["findings"] if one["check"].startswith(check)]


def test_the_real_flashinfer_is_imported(jit_lab: Lab, engine: Engine) -> None:
    project = Project(jit_lab.folder, jit_lab.name)
    jit_lab.start("wheel")
    words = ("--set", "sources.flashinfer.origin={wheel: flashinfer-python==0.5.3}")
    (found,) = findings(project, "import.truth", *words)
    assert found["title"].startswith(f"flashinfer is {SITE}/__init__.py (imported in ")


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path, "r:gz") as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]


def test_a_bundle_has_all_and_no_secret(box: Project, tmp_path: Path) -> None:
    secrets = PLANTED
    everything = "\n".join([*(text for text, _ in secrets.values()), "said only-words-here\n"])
    docker("exec", "-i", f"{box.name}-dev-dev-1", "sh", "-c", "cat >/proc/1/fd/1", stdin=everything)
    (box.root / "envgen.local.yaml").write_text("# API_KEY: zzTopSecret99 (as a value: refused)\nprofiles: {}\n")
    (box.root / ".envgen/logs/build-dev-1.log").write_text(everything)
    target = tmp_path / "b.tar.gz"
    done = box.envgen("doctor", "--bundle", str(target), code=None, env={"MY_TOKEN": "of-this-shell"})
    assert "wrote" in done.err
    found = members(target)
    for name in ("doctor.json", "versions.json", "project/envgen.yaml", "project/envgen.local.yaml",
                 "container.json", "server.log", "processes.txt", "logs/build-dev-1.log"):  # fmt: skip
        assert name in found, sorted(found)
    assert json.loads(found["versions.json"])["engine"]["version"]
    assert json.loads(found["doctor.json"])["findings"] and b"said" in found["server.log"]
    words = [secret for _, secret in secrets.values()]
    for word in [*words, "hf_InTheContainer", "only-words-here", "zzTopSecret99", "of-this-shell"]:
        holders = [name for name, content in found.items() if word.encode() in content]
        assert not holders, f"{word} in {holders}"
    assert not [name for name, content in found.items() if len(secret_lines(content)) > 0]


def secret_lines(content: bytes) -> list[bytes]:
    return [line for line in content.splitlines() if b"PRIVATE KEY-----" in line]


def test_without_an_engine_a_bundle_is_still_written(project: Project, tmp_path: Path) -> None:
    target = tmp_path / "b.tar.gz"
    project.envgen("doctor", "--bundle", str(target), code=1, env={"DOCKER_HOST": "unix:///nowhere.sock"})
    found = members(target)
    assert b"is not running" in found["no-engine.txt"] and b"no Docker Engine" in found["doctor.txt"]


def test_the_shipped_check_of_kernels_runs_inside(box: Project) -> None:
    """Without a GPU it runs no kernel."""
    words = [sys.executable, "-m", "envgen", *box.words("exec", "dev", "python3", "-")]
    script = Path(__file__).parents[2] / "checks/gpt_oss.py"
    printed = subprocess.run(words, cwd=box.root, stdin=script.open(), capture_output=True, check=True)
    (only,) = json.loads(printed.stdout)["findings"]
    assert only["severity"] == "info" and "not run" in only["title"]
