"""All checks, in the order of the report."""

from __future__ import annotations

from envgen.doctor.checks import box, imports, machine, outside, packages, running, versions
from envgen.doctor.model import Check

BOX: tuple[Check, ...] = (box.kernel, box.clocks, box.memory)
CHECKS: tuple[Check, ...] = (
    # Host
    *BOX,
    outside.docker,
    outside.gpu_runtime,
    # Image
    outside.image,
    outside.unpatched,
    # Container
    outside.running,
    outside.settings,
    outside.restart_policy,
    outside.notices,
    outside.changed,
    # Inside
    machine.probe_ran,
    machine.source_mounts,
    imports.import_truth,
    running.import_running,
    packages.console_scripts,
    packages.metadata,
    versions.locked,
    versions.driver,
    packages.claimed,
    packages.binaries,
    packages.flashinfer_data,
    packages.prebuilt,
    machine.caches,
    machine.modules,
    versions.compilers,
    versions.gpu_arch,
)
