"""docker-bake.json; Docker's own reading of it is compared in tests/engine/test_render_engine.py."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from envgen import cli
from envgen.errors import RefusedError
from envgen.profile.load import load_project
from envgen.render import exports

FILE = """\
version: 1
name: t
default_profile: p
profiles:
  p:
    mode: production
    base: {image: "nvcr.io/x:1", platform: linux/arm64}
    cuda: {arch_list: 12.1a}
    build: {max_jobs: 3, wheelhouse: WHEELS}
    network: {ca_certificates: CA}
"""


def made(folder: Path, ca: str, wheels: str) -> dict[str, object]:
    (folder / "envgen.yaml").write_text(FILE.replace("WHEELS", wheels).replace("CA", ca))
    project = load_project(file=folder / "envgen.yaml", environ={}).project
    return exports.bake(project, {"p": 17})


def test_a_target_names_no_machine(tmp_path: Path) -> None:
    text = exports.as_json(made(tmp_path, "~/ours.pem", "~/wheels"))
    assert "ours" not in text and "~/" not in text
    target = json.loads(text)["target"]["p"]
    assert target["args"]["SOURCE_DATE_EPOCH"] == "17" and target["platforms"] == ["linux/arm64"]
    assert target["contexts"] == {"wheelhouse": "${ENVGEN_BUILD__WHEELHOUSE}"}
    assert '"3"' not in text  # the number of jobs is the variable's, as in the Compose file


def test_paths_of_the_project_are_defaults_and_quoted(tmp_path: Path) -> None:
    target = made(tmp_path, "'certs/a\".pem'", "wheels")["target"]
    assert isinstance(target, dict)
    assert r'== "" ? "certs/a\".pem" : ENVGEN_NETWORK__CA_CERTIFICATES' in target["p"]["secret"]
    assert '"wheels"' in target["p"]["contexts"]["wheelhouse"]


def test_only_its_own_file_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path, "ca.pem", "wheels")
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        done = CliRunner().invoke(cli.main, ["export", "bake", "-o", "docker-bake.json"])
        assert done.exit_code == 0, done.exception
    assert re.match(r'\{\n  "//": "Written by `envgen export bake`', Path("docker-bake.json").read_text())
    Path("docker-bake.json").write_text("{}")
    done = CliRunner().invoke(cli.main, ["export", "bake", "-o", "docker-bake.json"])
    assert isinstance(done.exception, RefusedError) and Path("docker-bake.json").read_text() == "{}"
