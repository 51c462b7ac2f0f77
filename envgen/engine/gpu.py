"""How an engine gives a container its GPUs: by the NVIDIA runtime, or by CDI."""

from __future__ import annotations

import re

from envgen.engine.values import EngineInfo
from envgen.errors import Problem
from envgen.profile.model import GpuMode

NO_GPU = "the engine offers neither an NVIDIA runtime nor CDI devices"


def gpu_offered(info: EngineInfo, wanted: GpuMode) -> tuple[GpuMode, Problem | None]:
    """The mode for this engine, and the problem where it has none that fits ``wanted``."""
    if wanted is GpuMode.NONE:
        return wanted, None
    has_runtime = "nvidia" in info.runtimes
    has_cdi = any(device.startswith("nvidia.com/gpu") for device in info.cdi_devices)
    hint = "install the NVIDIA Container Toolkit, or start without a GPU: --set gpu=none"
    if wanted is GpuMode.ALL and not has_runtime:
        other = "; it offers CDI: --set gpu=cdi" if has_cdi else ""
        return wanted, Problem(f"gpu: all, but the engine has no NVIDIA runtime{other}", hint=hint)
    # Engines before API 1.50 don't list their CDI devices: trust the profile there.
    api_version = re.findall(r"\d+", info.api_version)
    lists_devices = tuple(map(int, api_version[:2])) >= (1, 50)
    if wanted is GpuMode.CDI and not has_cdi and lists_devices:
        return wanted, Problem("gpu: cdi, but the engine has no device nvidia.com/gpu", hint=hint)
    if not wanted.asks_engine:
        return wanted, None
    if has_cdi:  # first: current toolkits set it up, and it works where both are
        return GpuMode.CDI, None
    if has_runtime:
        return GpuMode.ALL, None
    if wanted is GpuMode.REQUIRED:
        return wanted, Problem(f"gpu: required, but {NO_GPU}", hint=hint)
    return GpuMode.NONE, None
