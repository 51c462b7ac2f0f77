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
# A check without a place above is an error here: it would never run.
CHECKS: tuple[Check, ...] = tuple(
    sorted(CHECKED.values(), key=lambda check: _ORDER.index(check.id))
)
