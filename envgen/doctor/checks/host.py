"""This machine: Docker and its plug-ins, disk, memory, GPU runtime, ports."""

from __future__ import annotations

import re

from envgen.doctor import remedies
from envgen.doctor.model import Context, Finding, error, info, ok, warning

GIB = 1 << 30
OLDEST = 23
LITTLE, TIGHT = 5 * GIB, 30 * GIB


def docker(context: Context) -> list[Finding]:
    """A Docker Engine answers, and is new enough for BuildKit's heredocs."""
    assert context.engine is not None
    version = context.engine.version
    number = re.match(r"[0-9]+", version)
    if number and int(number[0]) < OLDEST:
        cure = remedies.command("sudo apt-get install docker-ce")
        return [error("Docker is too old", version, f"{OLDEST} or newer", cure)]
    return [ok(f"Docker {version}", endpoint=context.engine.endpoint)]


def plugins(context: Context) -> list[Finding]:
    """buildx and compose v2 are installed."""
    assert context.host is not None
    found = []
    for name, there in (("buildx", context.host.buildx), ("compose", context.host.compose)):
        if there is False:
            cure = remedies.command(f"sudo apt-get install docker-{name}-plugin")
            found.append(error(f"docker {name} isn't installed", "no such plug-in", f"docker-{name}", cure))
    return found or [ok("buildx and compose are installed")]


def disk(context: Context) -> list[Finding]:
    """There is room for the next build."""
    assert context.host is not None
    free, path = context.host.disk_free, context.host.disk_path
    if free is None:
        return []
    cure, seen = remedies.command("docker builder prune"), f"{free / GIB:.1f} GiB free below {path}"
    if free < LITTLE:
        return [error("the disk of Docker is nearly full", seen, f"{TIGHT // GIB} GiB for a build", cure)]
    if free < TIGHT:
        return [warning("the disk of Docker is filling up", seen, f"{TIGHT // GIB} GiB for a build", cure)]
    return [ok(f"{free // GIB} GiB free on the disk of Docker", path=path)]


def memory(context: Context) -> list[Finding]:
    """The jobs of a build fit into the memory that is free now."""
    assert context.host is not None
    free, jobs = context.host.memory_available, context.host.max_jobs
    if free is None or jobs is None:
        return []
    each = context.profile.build.memory_per_job
    if jobs * each.bytes > free and jobs > 1:
        fits = max(1, free // each.bytes)
        seen = f"{jobs} jobs, {each} each = {jobs * each.bytes // GIB} GiB; {free // GIB} GiB are free"
        cure = remedies.line(f"build: {{max_jobs: {fits}}}")
        return [warning("a build may run out of memory", seen, f"at most {fits} jobs", cure)]
    return [ok(f"{free // GIB} GiB of memory are free: enough for {jobs} job{'s' * (jobs != 1)}")]


def gpu_runtime(context: Context) -> list[Finding]:
    """The engine can hand a GPU to a container, when the profile wants one."""
    assert context.engine is not None
    mode, engine = context.profile.gpu.value, context.engine
    cdi = any(device.startswith("nvidia.com/gpu") for device in engine.cdi_devices)
    runtime = "nvidia" in engine.runtimes
    if mode == "none":
        return []
    if mode == "auto":
        what = "CDI" if cdi else "the NVIDIA runtime" if runtime else ""
        return [ok(f"the engine offers GPUs through {what}")] if what else [info("the engine offers no GPU; gpu: auto")]
    if mode == "cdi" and not cdi:
        cure = remedies.command("sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml")
        return [error("the engine knows no CDI device nvidia.com/gpu", "none", "gpu: cdi", cure)]
    if mode == "all" and not runtime and not cdi:
        cure = remedies.command("sudo nvidia-ctk runtime configure --runtime=docker")
        return [error("the engine has no NVIDIA runtime", ", ".join(engine.runtimes), "gpu: all", cure)]
    return [ok(f"the engine can give GPUs to containers (gpu: {mode})")]


def ports(context: Context) -> list[Finding]:
    """The ports of services that don't run are free."""
    assert context.host is not None
    found = []
    for port, owner in context.host.busy_ports:
        cure = remedies.line(f"services: {{{_service_of(context, port)}: {{ports: ['{port + 1}:{port}']}}}}")
        found.append(warning(f"port {port} is taken", owner, "free, or this profile's own service", cure, port=port))
    return found


def _service_of(context: Context, port: int) -> str:
    for name, service in context.profile.services.items():
        if any(mapping.host == port for mapping in service.ports):
            return name
    return context.service
