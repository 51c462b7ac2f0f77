"""A profile, engine facts and recorded probes, put together to the Context that a test judges."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envgen.binding import bind
from envgen.doctor.checks.imports import wanted
from envgen.doctor.model import Context
from envgen.doctor.probed import Probe
from envgen.doctor.programs import Tried
from envgen.engine.values import Container, ContainerMount, EngineInfo, Image
from envgen.profile.load import load_project, select

DATA = Path(__file__).parents[1] / "unit" / "doctor" / "data"
DIGEST = "d" * 64
FILE = """
version: 1
name: lab
default_profile: dev
defaults:
  base: {image: example.org/base:1}
  cuda: {arch_list: 12.1a}
  build: {max_jobs: 4}
  working_dir: /workspace
  caches: {flashinfer: {path: /root/.cache/flashinfer}}
  tiktoken:
    encodings: {o200k_base: {url: "https://example.org/o", sha256: SHA}}
profiles:
  dev:
    mode: development
    dockerfile: Dockerfile.dev
    sources:
      flashinfer:
        origin: {checkout: checkout}
        package: flashinfer
        distribution: flashinfer-python
        mount: MOUNT
        console_scripts: [flashinfer]
    python_path: [PYTHON_PATH]
    services: {dev: {command: [bash]}}
  prod:
    mode: production
    sources:
      flashinfer: {origin: {wheel: flashinfer-python==0.5.3}, package: flashinfer, distribution: flashinfer-python,
                   mount: /workspace/flashinfer, console_scripts: [flashinfer]}
      vllm: {origin: {wheel: vllm==0.14.0}, package: vllm, distribution: vllm, mount: /workspace/vllm,
             console_scripts: [vllm]}
    services: {serve: {command: [vllm, serve, tiny], ports: ["8000:8000"]}}
"""


def recording(name: str) -> dict[str, Any]:
    """A recorded document, fresh, so that a test may change it."""
    found: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text())
    return found


CONTAINER = Container(
    id="c" * 64, name="lab-dev-1", service="dev", state="running", health="", exit_code=0,
    image_id="sha256:" + "a" * 64, labels={}, env={},
    mounts=(ContainerMount("/home/me/flashinfer", "/workspace/flashinfer"),), ports=(), started_at="2026-01-01",
)  # fmt: skip
IMAGE = Image(
    id="sha256:" + "a" * 64, labels={"dev.envgen.profile": "dev", "dev.envgen.render": DIGEST}, created="2026-01-01",
    size=1, architecture="amd64", repo_tags=("lab:dev",), env={},
)  # fmt: skip
ENGINE = EngineInfo(
    version="28.5.2", api_version="1.51", arch="amd64", runtimes=("runc",), cdi_devices=(),
    memory=64 << 30, cpus=8, endpoint="unix:///var/run/docker.sock",
)  # fmt: skip
Make = Callable[..., Context]
PP, CACHE = "/workspace/flashinfer", "/root/.cache/flashinfer"
HOME = f"{PP}/flashinfer/__init__.py"


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """make(recording or document, profile=..., mount=..., python_path=..., gpu=..., **parts of the Context)."""

    def build(probe: str | dict[str, Any] | None = None, **given: Any) -> Context:
        mount = given.pop("mount", "/workspace/flashinfer")
        text = (
            FILE.replace("MOUNT", mount).replace("PYTHON_PATH", given.pop("python_path", "")).replace("SHA", "a" * 64)
        )
        file = tmp_path / "envgen.yaml"
        file.write_text(text)
        (tmp_path / "checkout").mkdir(exist_ok=True)
        sets = given.pop("sets", ())
        name = given.pop("profile", "dev")
        profile = select(load_project(file=file, environ={}, profile=name, sets=sets).project, name)
        service = next(iter(profile.services))
        document = recording(probe) if isinstance(probe, str) else probe
        found = bind(Probe, document) if document is not None else None
        tried = {}
        for source in profile.sources.values():
            tried[source.package] = Tried(wanted(source, found) if found else "", seconds=2.0)
        context = Context(
            profile, service, engine=ENGINE, image=IMAGE, container=CONTAINER, digest=DIGEST, probe=found, tried=tried,
        )  # fmt: skip
        return replace(context, **given)

    return build


def given(probe: str | dict[str, Any] | None = None, **parts: Any) -> Callable[[Make], Context]:
    return lambda make: make(probe, **parts)


def container(**facts: Any) -> Container:
    return replace(CONTAINER, **facts)


def altered(name: str = "hook-pythonpath", **parts: Any) -> dict[str, Any]:
    """A recording with parts exchanged; a part that is a dictionary is added to."""
    document = recording(name)
    for part, value in parts.items():
        document[part] = {**document.get(part, {}), **value} if isinstance(value, dict) else value
    return document


def with_cells(name: str = "hook-pythonpath", **values: Any) -> dict[str, Any]:
    """A recording in which each way of starting Python finds this for flashinfer."""
    document = recording(name)
    for cell in document["imports"]:
        if cell["package"] == "flashinfer":
            cell.update(values)
    return document


def with_folder(path: str = PP, **facts: Any) -> dict[str, Any]:
    """A mount of the profile."""
    base = {"path": path, "exists": True, "mounted": True, "writable": True, "uid": 0, "gid": 0, "mode": "0o755"}
    return altered(folders=[{**base, **facts}])
