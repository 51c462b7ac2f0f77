"""Which way an engine can give a container its GPU: the NVIDIA runtime, or CDI."""

from __future__ import annotations

import re

from envgen.engine.values import EngineInfo
from envgen.errors import Problem
from envgen.profile.model import GpuMode

NO_GPU = "the engine offers neither an NVIDIA runtime nor CDI devices"


def gpu_offered(info: EngineInfo, wanted: GpuMode) -> tuple[GpuMode, Problem | None]:
    """The way that this engine gives the ``wanted`` GPU, and why it can't."""
    if wanted is GpuMode.NONE:
        return wanted, None
    has_runtime = "nvidia" in info.runtimes
    has_cdi = any(device.startswith("nvidia.com/gpu") for device in info.cdi_devices)
    hint = "install the NVIDIA Container Toolkit, or start without a GPU: --set gpu=none"
    if wanted is GpuMode.ALL and not has_runtime:
        other = "; it offers CDI: --set gpu=cdi" if has_cdi else ""
        return wanted, Problem(f"gpu: all, but the engine has no NVIDIA runtime{other}", hint=hint)
    # Engines before API 1.50 don't list their CDI devices: there the profile is believed.
    lists_devices = tuple(int(part) for part in re.findall(r"\d+", info.api_version)[:2]) >= (1, 50)
    if wanted is GpuMode.CDI and not has_cdi and lists_devices:
        return wanted, Problem("gpu: cdi, but the engine knows no device nvidia.com/gpu", hint=hint)
    if not wanted.asks_engine:
        return wanted, None
    if has_cdi:  # first: it is what current toolkits set up, and what works under both
        return GpuMode.CDI, None
    if has_runtime:
        return GpuMode.ALL, None
    if wanted is GpuMode.REQUIRED:
        return wanted, Problem(f"gpu: required, but {NO_GPU}", hint=hint)
    return GpuMode.NONE, None
