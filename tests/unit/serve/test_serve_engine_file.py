"""What an engine does not take as it is rendered: GPUs that it gives in another way or has none of."""

from __future__ import annotations

from pathlib import Path

import pytest

from envgen.deployment import engine_file
from envgen.profile.load import load_project
from envgen.profile.model import GpuMode

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
