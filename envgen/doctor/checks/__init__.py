"""All checks, in the order of the report."""

from __future__ import annotations

from envgen.doctor.checks import (  # noqa: F401 - each has its checks
    box,
    imports,
    machine,
    outside,
    packages,
    running,
    versions,
)
from envgen.doctor.model import CHECKED, Check

_ORDER = """
host.kernel host.clocks host.memory host.docker patches.mounted
image.current
container.running container.settings container.restart container.kernels
container.changed
python.start mounts.sources import.truth import.running import.scripts import.metadata
packages.locked patches.claimed packages.binaries flashinfer.data
flashinfer.prebuilt mounts.caches caches.stale cuda.compilers gpu.arch
"""
CHECKS: tuple[Check, ...] = tuple(CHECKED[name] for name in _ORDER.split())
BOX = CHECKS[:3]  # of the machine itself
