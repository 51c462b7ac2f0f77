"""Which way to a GPU, by what the engine says, and what is rendered for an engine that has another one or none."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from envgen.deployment.project import Deployment, engine_file
from envgen.engine.values import EngineInfo
from envgen.profile.load import load_project
from envgen.profile.model import GpuMode, Profile

PLAIN = EngineInfo("28.0", "1.51", "arm64", ("runc",), (), 1, 1, "unix:///x")
CDI = ("nvidia.com/gpu=all",)


class Told:
    """An engine of which only the facts are asked."""

    def __init__(self, **facts: Any) -> None:
        self._info = dataclasses.replace(PLAIN, **facts)

    def info(self) -> EngineInfo:
        return self._info


def on(engine: Told | None, wanted: GpuMode) -> Deployment:
    return Deployment(cast(Profile, SimpleNamespace(gpu=wanted)), Path()).with_cached(engine=engine)


def decide(wanted: GpuMode, **facts: Any) -> tuple[GpuMode, str]:
    deployment = on(Told(**facts), wanted)
    return deployment.gpu, str(deployment.lacks_gpu or "")


@pytest.mark.parametrize(
    ("facts", "mode"),
    [
        ({"runtimes": ("nvidia", "runc")}, GpuMode.ALL),
        ({"cdi_devices": CDI}, GpuMode.CDI),
        ({"runtimes": ("nvidia",), "cdi_devices": CDI}, GpuMode.CDI),
    ],
)
def test_auto_takes_what_there_is(facts: dict[str, Any], mode: GpuMode) -> None:
    assert decide(GpuMode.AUTO, **facts) == decide(GpuMode.REQUIRED, **facts) == (mode, "")


def test_auto_without_any_starts_without_and_required_refuses() -> None:
    assert decide(GpuMode.AUTO, cdi_devices=("vendor.com/nic=0",)) == (GpuMode.NONE, "")
    _, problem = decide(GpuMode.REQUIRED, cdi_devices=("vendor.com/nic=0",))
    assert "neither an NVIDIA runtime nor CDI devices" in problem and "--set gpu=none" in problem


def test_what_is_asked_for_must_be_there() -> None:
    assert "the engine has no NVIDIA runtime; it offers CDI: --set gpu=cdi" in decide(GpuMode.ALL, cdi_devices=CDI)[1]
    assert "has no device nvidia.com/gpu" in decide(GpuMode.CDI, runtimes=("nvidia",))[1]
    assert decide(GpuMode.ALL, runtimes=("nvidia",)) == (GpuMode.ALL, "")


def test_engines_that_do_not_list_their_cdi_devices_are_trusted() -> None:
    assert decide(GpuMode.CDI, api_version="1.49") == (GpuMode.CDI, "")


def test_none_asks_nobody() -> None:
    deployment = on(None, GpuMode.NONE)
    assert (deployment.gpu, deployment.lacks_gpu) == (GpuMode.NONE, None)


# What an engine does not take as it is rendered


FILE = """\
version: 1
name: p
profiles:
  dev:
    mode: development
    base: {{image: "localhost/none:1"}}
    cuda: {{arch_list: "12.1a"}}
    gpu: {gpu}
    services: {{web: {{command: [x]}}, one: {{command: [x], gpu: ["0"]}}, without: {{command: [x], gpu: []}}}}
"""
HEAD = "deploy: {resources: {reservations: {devices: "


def written(root: Path, gpu: str, mode: GpuMode) -> list[str]:
    text = FILE.format(gpu=gpu)
    (root / "envgen.yaml").write_text(text if gpu != "none" else text.replace(', gpu: ["0"]', ""))
    profile = load_project(file=root / "envgen.yaml").project.profiles["dev"]
    (root / ".envgen").mkdir(exist_ok=True)
    path = engine_file(profile, root / ".envgen", mode)
    return path.read_text().splitlines() if path else []


@pytest.mark.parametrize("gpu", ["auto", "required"])
def test_what_the_engine_lacks_is_taken_out(tmp_path: Path, gpu: str) -> None:
    lines = [f"  {name}: {{{HEAD}!reset []}}}}}}}}" for name in ("web", "one")]
    assert written(tmp_path, gpu, GpuMode.NONE) == ["services:", *lines]
    assert written(tmp_path, gpu, GpuMode.ALL) == []


def test_two_engines_of_one_profile_have_a_file_each(tmp_path: Path) -> None:
    (tmp_path / "envgen.yaml").write_text(FILE.format(gpu="auto"))
    profile = load_project(file=tmp_path / "envgen.yaml").project.profiles["dev"]
    first, second = (engine_file(profile, tmp_path, mode) for mode in (GpuMode.NONE, GpuMode.CDI))
    assert first and second and "!reset" in first.read_text() and "!override" in second.read_text()
    assert engine_file(profile, tmp_path, GpuMode.NONE) == first


def test_an_engine_with_cdi_alone(tmp_path: Path) -> None:
    _, web, one = written(tmp_path, "auto", GpuMode.CDI)
    cdi = '"driver": "cdi", "device_ids": ["nvidia.com/gpu={}"], "capabilities": ["gpu"]'
    assert web == f"  web: {{{HEAD}!override [{{{cdi.format('all')}}}]}}}}}}}}"
    assert cdi.format("0") in one


@pytest.mark.parametrize("gpu", ["all", "cdi", "none"])
def test_what_the_profile_decides_stays(tmp_path: Path, gpu: str) -> None:
    assert written(tmp_path, gpu, GpuMode.NONE) == []
