"""devcontainer.json; tests/engine/test_up_development.py opens it with the devcontainers CLI."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from envgen import cli

FILE = """\
version: 1
name: t
default_profile: dev
defaults:
  base: {image: "nvcr.io/x:1", python: python3.12}
  cuda: {arch_list: 12.1a}
  working_dir: /workspace
  services: {serve: {command: [sleep, "1"]}, dev: {command: [sleep, "1"], working_dir: /elsewhere}}
profiles:
  dev:
    mode: development
    compose: own/over.yaml
    sources:
      vllm: {package: vllm, distribution: vllm, mount: /workspace/vllm, origin: {checkout: ../vllm}}
  prod: {mode: production}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "envgen.yaml").write_text(FILE)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "over.yaml").write_text("services: {}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def exported(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(cli.main, ["export", "devcontainer", *words])
    assert done.exit_code == 0, done.exception
    head, _, text = done.stdout.partition("\n")
    assert head.startswith("// Written by `envgen export devcontainer`.")
    found: dict[str, Any] = json.loads(text)
    return found


def test_an_editor_attaches_to_what_envgen_starts(folder: Path) -> None:
    found = exported("dev")
    bare = CliRunner().invoke(cli.main, ["export", "devcontainer"])
    assert "the editor reads compose/dev.yaml, which does not exist yet: run `envgen render`" in bare.stderr
    assert found["initializeCommand"] == ["envgen", "up", "dev", "--profile", "dev"]
    assert found["dockerComposeFile"] == ["../compose/dev.yaml", "../own/over.yaml"]
    assert (found["service"], found["workspaceFolder"], found["overrideCommand"]) == ("dev", "/elsewhere", False)
    editor = found["customizations"]["vscode"]
    assert editor["extensions"] == ["ms-python.python"]
    assert editor["settings"] == {"python.defaultInterpreterPath": "/opt/envgen/env/bin/python"}
    assert "['vllm']" in found["postCreateCommand"][2]


def test_an_editor_starts_the_same_file_and_values(folder: Path) -> None:
    (folder / "envgen.yaml").rename(folder / "second.yaml")
    found = exported("dev", "-f", "second.yaml", "--set", "ipc=host")
    options = ["--profile", "dev", "--file", "second.yaml", "--set", "ipc=host"]
    assert found["initializeCommand"] == ["envgen", "up", "dev", *options]


def test_a_built_image_has_the_base_image_s_python(folder: Path) -> None:
    found = exported("-p", "prod")
    assert found["service"] == "dev" and "postCreateCommand" not in found
    assert found["customizations"]["vscode"]["settings"] == {"python.defaultInterpreterPath": "python3.12"}
