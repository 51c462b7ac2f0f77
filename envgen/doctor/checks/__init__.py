"""Every check, in the order of the report. There is no registry: what isn't in this list doesn't run."""

from __future__ import annotations

from envgen.doctor.checks import (
    around,
    container,
    flashinfer,
    host,
    image,
    imports,
    machine,
    mounts,
    packages,
    usage,
    versions,
)
from envgen.doctor.model import Check

CHECKS: tuple[Check, ...] = (
    # Host
    host.docker, host.plugins, host.disk, host.gpu_runtime, host.ports, host.refused, host.weights, host.exposure,
    host.owners, host.clock,
    # Image
    image.exists, image.rendered_from_profile, image.platform, image.patches,
    # Container
    container.running, container.others, container.current_image, container.variables, container.restart_policy,
    # Inside
    around.probe_ran, mounts.source_mounts, imports.import_truth, packages.leftovers, packages.console_scripts,
    packages.metadata, versions.locked, versions.protected, versions.conflicts, versions.driver,
    flashinfer.patched_files, usage.claimed, flashinfer.flashinfer_data, flashinfer.flashinfer_set,
    flashinfer.prebuilt, usage.variables, usage.flags, mounts.caches, mounts.vocabulary, usage.harmony,
    versions.cuda_versions, versions.compilers, around.gpu, versions.gpu_arch, around.gate_is_on, machine.unified,
    machine.compilers,
)  # fmt: skip
