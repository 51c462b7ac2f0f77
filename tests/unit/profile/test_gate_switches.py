"""compile-gate's switches: accepted where a container gets them, and read by the gate as they are written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from envgen.profile.load import load_project
from envgen.render.outputs import render_profile

HEAD = """\
version: 1
name: demo
profiles:
  p:
    mode: production
    base: {image: debian:12}
    cuda: {arch_list: 12.1a}
"""
SOURCE = "    sources: {v: {origin: {git: 'https://h/x', ref: v1}, package: v, distribution: v, mount: /src/v, %s}}\n"
PLACES = [
    "    env: {gate: {%s}}\n    services: {web: {command: [x]}}\n",
    "    services: {web: {command: [x], env: {%s}}}\n",
    SOURCE % "install: {env: {%s}}",
]


def loaded(folder: Path, body: str) -> str:
    (folder / "envgen.yaml").write_text(HEAD + body)
    project = load_project(file=folder / "envgen.yaml", local=False).project
    files = render_profile(project.profiles["p"], root=project.root).files
    return "\n".join(content.decode() for content in files.values())


@pytest.mark.parametrize("place", PLACES, ids=["env", "service", "build"])
@pytest.mark.parametrize("text", ["ENVGEN_GATE: 'off'", "ENVGEN_GATE_MEMORY: 40", "ENVGEN_GATE_CORES: 8"])
def test_the_switches_reach_what_compiles(tmp_path: Path, place: str, text: str) -> None:
    name, value = text.replace("'", "").split(": ")
    assert re.search(rf"{name}(: |=)\"?{value}\"?", loaded(tmp_path, place % text))
