"""The bundle of `up` and of `doctor --bundle`: what is in it, what can't be had says why, and no secret leaves."""

from __future__ import annotations

import io
import json
import os
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from doctor_facts import CONTAINER
from planted import PLANTED

from envgen.app import bundle
from envgen.app.doctor import Diagnosis
from envgen.deployment import Deployment
from envgen.deployment.service import LiveService
from envgen.doctor.collect import gather
from envgen.doctor.model import Subject
from envgen.doctor.report import examine
from envgen.engine import process
from envgen.engine.client import Engine
from envgen.engine.values import Container, EngineInfo, ExecResult, ProcessState
from envgen.errors import EngineError, UsageError
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
    secrets: [PLAIN, SHORT]
    services: {dev: {command: [sleep, infinity]}}
"""
INFO = EngineInfo("28.0", "1.51", "arm64", (), (), 1, 1, "tcp://elsewhere:2376")
VALUES = {"PLAIN": "only-words-here", "HF_TOKEN": "word-of-the-container", "LEVEL": "debugging", "SHORT": "abc"}
ENDED = replace(CONTAINER, state="exited", exit_code=137, env=VALUES)


class Told:
    """An engine on another machine, with one container; or one that does not answer."""

    def __init__(self, container: Container | None = None, broken: str = "", info: EngineInfo = INFO) -> None:
        self.found, self.broken, self.said = container, broken, info

    def info(self) -> EngineInfo:
        return self.said

    def image(self, _: str) -> None:
        return None

    def containers(self, *_: object, all: bool) -> list[Container]:
        return [self.found] if self.found else []

    def inspect(self, _: str) -> dict[str, Any]:
        return {"Config": {"Env": [f"{name}={value}" for name, value in VALUES.items()]}, "State": {"OOMKilled": True}}

    def logs(self, _: str, **_more: object) -> str:
        if self.broken:
            raise EngineError(self.broken)
        return "stamp the last words " + " ".join(VALUES.values())

    def read_file(self, _: str, path: str) -> bytes:
        return b"12:00:00Z left 3.00 GiB, used here 90.00 GiB\n" if path == bundle.RECORD else b""

    def processes(self, _: str) -> list[ProcessState]:
        if self.broken:
            raise EngineError(self.broken)
        return [ProcessState(70, 1, "Ss", 5 << 20, "vllm serve"), ProcessState(71, 70, "Z+", 0, "[true] <defunct>")]

    def exec(self, _: str, _argv: list[str], *, timeout: float) -> ExecResult:
        return ExecResult(1, b"Failed to initialize NVML: Unknown Error", b"")


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    (tmp_path / "envgen.yaml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("envgen.engine.box.look", lambda: None)  # it starts nvidia-smi
    return Deployment(load_project(tmp_path / "envgen.yaml").project.profiles["dev"], tmp_path)


def collected(deployment: Deployment, engine: Told) -> dict[str, str]:
    return bundle.collect(LiveService(deployment.with_cached(engine=cast(Engine, engine)), "dev"), dict)[0]


def read(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]


def test_a_container_that_has_ended(deployment: Deployment) -> None:
    found = collected(deployment, Told(ENDED))
    assert found["server.log"].startswith("stamp the last words")
    assert json.loads(found["container.json"])["Config"]["Env"][-1] == "SHORT=(secret)"
    assert not {"kernel.log", "gpu.txt", "memory.txt"}.intersection(found)  # the engine is on another machine
    assert "left 3.00 GiB" in found["memory-guard.txt"]  # it outlives the container's processes
    assert json.loads(found["versions.json"])["engine"]["version"] == "28.0"


def test_processes_with_a_zombie(deployment: Deployment) -> None:
    lines = collected(deployment, Told(replace(ENDED, state="running")))["processes.txt"].splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["70", "1", "Ss", "5M", "vllm", "serve"], ["71", "70", "Z+", "0M", "[true]", "<defunct>"],
    ]  # fmt: skip


def test_what_hangs_or_fails_leaves_its_reason(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(argv: tuple[str, ...], **_: Any) -> ExecResult:
        raise EngineError(f"{argv[0]}: Operation not permitted")

    monkeypatch.setattr(process, "run", run)
    local = replace(INFO, endpoint="unix:///x")
    found = collected(deployment, Told(replace(ENDED, state="running"), "the engine is gone", local))
    assert found["server.log"] == found["processes.txt"] == "not available: the engine is gone\n"
    assert found["kernel.log"] == "not available: dmesg: Operation not permitted\n"
    assert "nvidia-smi" in found["gpu.txt"] and "MemTotal" in found["memory.txt"]
    assert found["container-gpu.txt"] == "Failed to initialize NVML: Unknown Error\n"
    assert collected(deployment, Told())["server.log"] == "not available: there was no container\n"


def test_without_an_engine(deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(_environ: object) -> Engine:
        raise EngineError("no engine here")

    monkeypatch.setattr("envgen.deployment.host.connect", connect)
    (tmp_path / "secret").write_text("of somebody else")
    (tmp_path / "envgen.lock").symlink_to(tmp_path / "secret")
    (tmp_path / ".envgen/logs").mkdir(parents=True)
    for number, content in enumerate((b"0", b"1", b"log 2", b"\0" + b"x" * 9, b"log 4 \xff")):
        (path := tmp_path / f".envgen/logs/build-{number}.log").write_bytes(content)
        os.utime(path, (number, number))
    subject = Subject(deployment)
    bundle.write_report(tmp_path / "b.tar.gz", [Diagnosis(subject, examine(gather(subject)))])
    found = {name: text.decode() for name, text in read((tmp_path / "b.tar.gz").read_bytes()).items()}
    assert found["no-engine.txt"] == "no engine here\n" and "no engine here" in found["doctor.txt"]
    assert "engine" not in json.loads(found["versions.json"]) and "server.log" not in found
    assert found["project/envgen.yaml"] == FILE
    assert found["project/envgen.lock"].startswith("not available: is a link")
    logs = {name: text for name, text in found.items() if name.startswith("logs/")}
    assert list(logs.values()) == ["log 2\n", "(left out: 10 bytes that are not text)\n", "log 4 \ufffd\n"]


def test_no_secret_of_the_container_stays_in_a_crash_bundle(deployment: Deployment, tmp_path: Path) -> None:
    """By its name, or because the profile lists it; also where this shell has another value of it, or none."""
    engine = cast(Engine, Told(ENDED))
    path = bundle.save(
        [LiveService(deployment.with_cached(engine=engine), "dev")], StartFailure("it ended", ENDED), "a cause"
    )
    found = read((tmp_path / path).read_bytes())
    assert json.loads(found["findings.json"])["cause"] == "a cause" and b"debugging" in found["server.log"]
    for name, text in found.items():
        assert not [value for value in (b"only-words", b"word-of-the") if value in text], name


def test_each_machine_has_a_folder(tmp_path: Path) -> None:
    there = {"a": lambda: ({"x": "1 of-b"}, {"of-a-only"}), "b": lambda: ({"x": "of-a-only"}, {"of-b"})}
    assert bundle.write(tmp_path / "b.tar.gz", {"findings.json": "{}"}, cast(Any, there)) == 3
    assert read((tmp_path / "b.tar.gz").read_bytes()) == {
        "a/x": b"1 of-b", "b/x": b"[redacted: known secret]", "findings.json": b"{}",
    }  # fmt: skip  # "of-b" is too short to be taken out everywhere


def test_no_planted_secret_leaves_in_any_member() -> None:
    everything = "\n".join(text for text, _ in PLANTED.values())
    members = {
        "log.txt": everything,
        "coloured.log": "\n".join(f"\x1b[31m{t[:9]}\x1b[0m{t[9:]}" for t, _ in PLANTED.values()),
        **{f"one/{number}.txt": text for number, (text, _) in enumerate(PLANTED.values())},
        f"a/{PLANTED['hugging face token'][1]}.txt": "x",
    }
    found = read(bundle.archive(members))
    assert len(found) == len(members) and len(PLANTED) >= 20
    for name, content in found.items():
        for kind, (_, secret) in PLANTED.items():
            assert secret.encode() not in content and secret not in name, f"{kind} in {name}"


def test_equal_members_give_equal_bytes_and_the_file_is_the_owners(tmp_path: Path) -> None:
    assert bundle.archive({"b": "2", "a": "1"}) == bundle.archive({"a": "1", "b": "2"})
    target = tmp_path / "b.tar.gz"
    bundle.write(target, {"a": "x"}, {"": lambda: ({}, set())})
    assert target.stat().st_mode & 0o777 == 0o600


def test_what_was_there_stays_when_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "b.tar.gz"
    target.write_bytes(b"old")

    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for path, why in ((target, "No space left"), (tmp_path / "no" / "b.tar.gz", "can't be written")):
        with pytest.raises(UsageError, match=why):
            bundle.write(path, {"a": "x"}, {"": lambda: ({}, set())})
    assert target.read_bytes() == b"old" and list(tmp_path.iterdir()) == [target]
