"""Which way to a GPU: decided from what the engine says."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from envgen.deployment import Deployment
from envgen.engine.values import EngineInfo
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
