"""`doctor --bundle`: what is in it where there is no engine, and how files that can't be read are told."""

from __future__ import annotations

import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from doctor_facts import CONTAINER

from envgen.app.bundle import collect_report, save
from envgen.app.doctor import Diagnosis
from envgen.deployment import Deployment
from envgen.doctor.collect import gather
from envgen.doctor.model import Subject
from envgen.doctor.report import examine
from envgen.engine.client import Engine
from envgen.errors import EngineError
from envgen.profile.load import load_project
from envgen.serve.ended import StartFailure

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


def test_no_secret_of_the_container_stays_in_a_crash_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name, or because the profile lists it; also where this shell has another value of it, or none."""
    (tmp_path / "envgen.yaml").write_text(FILE.replace("base:", "secrets: [PLAIN]\n    base:"))
    profile = load_project(tmp_path / "envgen.yaml").project.profiles["dev"]
    values = {"PLAIN": "only-words-here", "HF_TOKEN": "word-of-the-container", "LEVEL": "debugging"}
    failure = StartFailure("it ended", replace(CONTAINER, env=values))
    monkeypatch.setattr("envgen.app.bundle.files_of", lambda *_: {"server.log": " ".join(values.values())})
    monkeypatch.setattr("envgen.app.bundle._doctor", lambda *_: "{}")
    monkeypatch.chdir(tmp_path)
    path = save([Deployment(profile, tmp_path)], "dev", failure, "")
    with tarfile.open(tmp_path / path) as tar:
        log = tar.extractfile("server.log").read().decode()  # type: ignore[union-attr]
    assert "debugging" in log and not [value for value in ("only-words", "word-of-the") if value in log]
