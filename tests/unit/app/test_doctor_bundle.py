"""`doctor --bundle`: what is in it where there is no engine, and how files that can't be read are told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envgen.app.bundle import collect_report
from envgen.app.doctor import Diagnosis
from envgen.deployment import Deployment
from envgen.doctor.collect import gather
from envgen.doctor.model import Subject
from envgen.doctor.report import examine
from envgen.engine.client import Engine
from envgen.errors import EngineError
from envgen.profile.load import load_project

FILE = """\
version: 1
name: lab
profiles:
  dev:
    mode: development
    base: {image: "b:1"}
    cuda: {arch_list: 12.1a}
    services: {dev: {command: [sleep, infinity]}}
"""


def no_engine(_environ: object) -> Engine:
    raise EngineError("no engine here")


def test_without_an_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "envgen.yaml").write_text(FILE)
    (tmp_path / "secret").write_text("of somebody else")
    (tmp_path / "envgen.lock").symlink_to(tmp_path / "secret")
    logs = tmp_path / ".envgen/logs"
    logs.mkdir(parents=True)
    for number in range(5):
        (logs / f"build-{number}.log").write_text(f"log {number}")
    profile = load_project(tmp_path / "envgen.yaml").project.profiles["dev"]
    monkeypatch.setattr("envgen.deployment.connect", no_engine)
    monkeypatch.setattr("envgen.engine.box.look", lambda: None)  # it starts nvidia-smi
    subject = Subject(Deployment(profile, tmp_path))
    found = collect_report([Diagnosis(subject, examine(*gather(subject)))])
    assert "no Docker Engine" in found["no-engine.txt"] and "no engine here" in found["doctor.txt"]
    assert json.loads(found["versions.json"])["engine"] is None
    assert found["project/envgen.yaml"] == FILE
    assert found["project/envgen.lock"].startswith("not available: is a link")
    assert len([name for name in found if name.startswith("logs/")]) == 3
    assert "server.log" not in found
