"""The members of a crash bundle: what can't be had says why, and no secret's value is kept."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, cast

import pytest

from envgen.engine import process
from envgen.engine.client import Engine
from envgen.engine.values import Container, EngineInfo, ExecResult
from envgen.errors import EngineError
from envgen.serve import crash

INFO = EngineInfo("28.0", "1.51", "arm64", (), (), "/d", 1, 1, "tcp://elsewhere:2376")
ENDED = Container(
    "c1", "demo-prod-serve-1", "serve", "exited", "", 137, "sha256:1", {"com.docker.compose.project": "demo-prod"}, {},
    (), (), "2026-01-01T00:00:00Z", restarts=2, oom_killed=True,
)  # fmt: skip


class Told:
    """An engine on another machine, with one container."""

    def __init__(self, container: Container | None, broken: bool = False) -> None:
        self.found = container
        self.broken = broken

    def info(self) -> EngineInfo:
        return INFO

    def container(self, _: str) -> Container | None:
        return self.found

    def inspect(self, _: str) -> dict[str, Any]:
        return {"Config": {"Env": ["HF_TOKEN=value-of-it", "A=1", "EMPTY="]}, "State": {"OOMKilled": True}}

    def logs(self, _: str, *, tail: int, timestamps: bool) -> str:
        if self.broken:
            raise EngineError("the engine is gone")
        return "stamp the last words"

    def read_file(self, _: str, path: str) -> bytes:
        return b"12:00:00Z left 3.00 GiB, used here 90.00 GiB\n" if path == crash.RECORD else b""

    def exec(self, _: str, argv: list[str], *, timeout: float) -> ExecResult:
        raise EngineError(f"`{argv[0]}` did not end within {timeout:g} s")


def collect(engine: Told) -> dict[str, str]:
    return crash.collect(cast(Engine, engine), "c1", "serve", ["HF_TOKEN", "EMPTY"])


def test_a_container_that_has_ended() -> None:
    members = collect(Told(ENDED))
    assert members["server.log"] == "stamp the last words\n"
    assert json.loads(members["container.json"])["Config"]["Env"] == ["HF_TOKEN=(secret)", "A=1", "EMPTY="]
    assert "no process of it is left" in members["processes.txt"]
    for name in ("kernel.log", "gpu.txt"):
        assert "another machine" in members[name]
    assert "left 3.00 GiB" in members["memory.txt"]  # the guard's record outlives its container's processes


def test_what_hangs_or_fails_leaves_its_reason_in_the_bundle() -> None:
    members = collect(Told(dataclasses.replace(ENDED, state="running"), broken=True))
    assert members["server.log"] == "not available: the engine is gone\n"
    assert "did not end within" in members["processes.txt"]


def test_no_container_at_all() -> None:
    members = collect(Told(None))
    assert members["server.log"] == "not available: no container of serve was there\n"


def test_kernel_messages_that_may_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Told(ENDED)
    monkeypatch.setattr(engine, "info", lambda: dataclasses.replace(INFO, endpoint="unix:///x"))

    def run(argv: list[str], **_: Any) -> ExecResult:
        if argv == ["dmesg"]:
            return ExecResult(1, b"", b"dmesg: read kernel buffer failed: Operation not permitted\n")
        raise EngineError(f"the program {argv[0]!r} is not installed")

    monkeypatch.setattr(process, "run", run)
    members = collect(engine)
    assert "Operation not permitted" in members["kernel.log"] and "sudo dmesg" in members["kernel.log"]
    assert members["gpu.txt"] == "not available: the program 'nvidia-smi' is not installed\n"
