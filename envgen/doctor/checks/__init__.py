"""Every check, in the order of the report. There is no registry: what isn't in this list doesn't run."""

from __future__ import annotations

from envgen.doctor.checks import around, container, host, image, imports, packages
from envgen.doctor.model import Check, FunctionCheck, Where

_HOST, _IMAGE, _CONTAINER, _INSIDE = Where.HOST, Where.IMAGE, Where.CONTAINER, Where.INSIDE

CHECKS: tuple[Check, ...] = (
    FunctionCheck("host.docker", "Docker Engine", _HOST, host.docker, ("engine",)),
    FunctionCheck("host.plugins", "buildx and compose", _HOST, host.plugins, ("host",)),
    FunctionCheck("host.disk", "room for builds", _HOST, host.disk, ("host",)),
    FunctionCheck("host.memory", "memory for builds", _HOST, host.memory, ("host",)),
    FunctionCheck("host.gpu", "GPUs for containers", _HOST, host.gpu_runtime, ("engine",)),
    FunctionCheck("host.ports", "free ports", _HOST, host.ports, ("host",)),
    FunctionCheck("image.exists", "the image", _IMAGE, image.exists),
    FunctionCheck("image.render", "image and profile agree", _IMAGE, image.rendered_from_profile, ("image",)),
    FunctionCheck("image.platform", "architecture", _IMAGE, image.platform, ("image",)),
    FunctionCheck("image.patches", "patches", _IMAGE, image.patches, ("image",)),
    FunctionCheck("container.running", "a running container", _CONTAINER, container.running, ("engine",)),
    FunctionCheck("container.image", "container and image agree", _CONTAINER, container.current_image),
    FunctionCheck("container.env", "variables", _CONTAINER, container.variables),
    FunctionCheck("python.start", "Python starts cleanly", _INSIDE, around.probe_ran),
    FunctionCheck("mounts.sources", "mounted checkouts", _INSIDE, around.source_mounts, ("probe",)),
    FunctionCheck("import.truth", "what is imported", _INSIDE, imports.import_truth, ("probe",)),
    FunctionCheck("import.leftovers", "leftovers of uninstalled wheels", _INSIDE, packages.leftovers, ("probe",)),
    FunctionCheck("import.scripts", "console scripts", _INSIDE, packages.console_scripts, ("probe",)),
    FunctionCheck("import.metadata", "installed metadata", _INSIDE, packages.metadata, ("probe",)),
    FunctionCheck("patches.files", "patched files", _INSIDE, packages.patched_files, ("probe",)),
    FunctionCheck("flashinfer.data", "sources for the JIT", _INSIDE, packages.flashinfer_data, ("probe",)),
    FunctionCheck("flashinfer.set", "cubins and prebuilt kernels fit", _INSIDE, packages.flashinfer_set, ("probe",)),
    FunctionCheck("flashinfer.prebuilt", "nothing masks the JIT", _INSIDE, packages.prebuilt, ("probe",)),
    FunctionCheck("mounts.caches", "caches", _INSIDE, around.caches, ("probe",)),
    FunctionCheck("tiktoken.files", "vocabulary files", _INSIDE, around.vocabulary, ("probe",)),
    FunctionCheck("gpu.devices", "GPU in the container", _INSIDE, around.gpu, ("probe",)),
    FunctionCheck("jit.memory", "memory for the JIT", _INSIDE, around.jobs_fit_memory, ("probe",)),
)
