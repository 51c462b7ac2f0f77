"""This machine: Docker and its plug-ins, disk, memory, GPU runtime, ports."""

from __future__ import annotations

from envgen.doctor import remedies
from envgen.doctor.model import Context, Finding, Where, check, error, info, ok, warning
from envgen.engine.endpoint import OLDEST, outdated
from envgen.profile.exposure import asks_for_key, closer, exposed, left_open
from envgen.text import counted

GIB = 1 << 30
LITTLE, TIGHT = 5 * GIB, 30 * GIB
# Seconds by which the clocks of this machine and of the container may differ before build tools take notice.
SKEW = 2.0


@check("host.docker", Where.HOST, needs="engine")
def docker(context: Context) -> list[Finding]:
    """An engine answers that is new enough; which it is, and what it cannot do."""
    assert context.engine is not None
    engine = context.engine
    kinds = (("rootless", engine.rootless), ("userns-remap", engine.remapped))
    words = [f"{engine.product} {engine.version}", *(word for word, is_so in kinds if is_so)]
    words += ["containerd's image store"] if engine.containerd_store else [engine.driver] if engine.driver else []
    found = [ok(", ".join(words), endpoint=engine.endpoint)]
    if engine.product == "Podman":
        seen = "no BuildKit of its own; `docker buildx create`, then BUILDX_BUILDER"
        found.append(info("Podman builds with another builder of buildx alone", seen))
    return found


@check("host.plugins", Where.HOST, needs="host")
def plugins(context: Context) -> list[Finding]:
    """buildx and compose v2 are installed, and new enough."""
    assert context.host is not None
    found = []
    for name, there in (("buildx", context.host.buildx), ("compose", context.host.compose)):
        cure = remedies.command(f"sudo apt-get install docker-{name}-plugin")
        if there is None:
            title = f"docker {name} isn't installed"
            found.append(error(title, "no such plug-in", f"docker-{name}", cure, case="missing"))
        elif outdated(name, there):
            found.append(error(f"docker {name} is too old", there, f"{OLDEST[name]} or newer", cure, case="old"))
    versions = f"buildx {context.host.buildx or ''}".strip(), f"compose {context.host.compose or ''}".strip()
    return found or [ok(f"{versions[0]} and {versions[1]} are installed")]


@check("host.disk", Where.HOST, needs="host")
def disk(context: Context) -> list[Finding]:
    """There is room for the next build."""
    assert context.host is not None
    free, path = context.host.disk_free, context.host.disk_path
    if free is None:
        return []
    cure, seen = remedies.command("docker builder prune"), f"{free / GIB:.1f} GiB free below {path}"
    wanted = f"{TIGHT // GIB} GiB for a build"
    if free < LITTLE:
        return [error("the disk of Docker is nearly full", seen, wanted, cure, case="full")]
    if free < TIGHT:
        return [warning("the disk of Docker is filling up", seen, wanted, cure, case="tight")]
    return [ok(f"{free // GIB} GiB free on the disk of Docker", path=path)]


@check("host.gpu", Where.HOST, needs="engine")
def gpu_runtime(context: Context) -> list[Finding]:
    """The engine can hand a GPU to a container, when the profile wants one."""
    assert context.engine is not None
    mode, engine = context.profile.gpu.value, context.engine
    cdi = any(device.startswith("nvidia.com/gpu") for device in engine.cdi_devices)
    runtime = "nvidia" in engine.runtimes
    if mode == "none":
        return []
    cure = remedies.command("sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml")
    if context.profile.gpu.asks_engine:
        what = "CDI" if cdi else "the NVIDIA runtime" if runtime else ""
        if what:
            return [ok(f"the engine offers GPUs through {what}")]
        if mode == "required":
            seen = ", ".join(engine.runtimes)
            return [error("the engine offers no GPU", seen, "gpu: required", cure, case="no-gpu")]
        return [info("the engine offers no GPU, so services start without one (gpu: auto)")]
    if mode == "cdi" and not cdi:
        return [error("the engine knows no CDI device nvidia.com/gpu", "none", "gpu: cdi", cure, case="no-cdi")]
    if mode == "all" and not runtime and not cdi:
        cure = remedies.command("sudo nvidia-ctk runtime configure --runtime=docker")
        title = "the engine has no NVIDIA runtime"
        return [error(title, ", ".join(engine.runtimes), "gpu: all", cure, case="no-runtime")]
    return [ok(f"the engine can give GPUs to containers (gpu: {mode})")]


@check("host.ports", Where.HOST, needs="host")
def ports(context: Context) -> list[Finding]:
    """The ports of services that don't run are free."""
    assert context.host is not None
    found = []
    for port, owner in context.host.busy_ports:
        name = _service_of(context, port)
        service = context.profile.services.get(name)
        other = f"ports: {left_open(service, port)}" if service and service.ports else f"args: {{port: {port + 1}}}"
        cure = remedies.line(f"services: {{{name}: {{{other}}}}}")
        wanted = "free, or this profile's own service"
        found.append(warning(f"port {port} is taken", owner, wanted, cure, case="taken", port=port))
    published = any(service.host_ports for service in context.profile.services.values())
    return found or ([ok("the published ports are free, or this profile's own")] if published else [])


def _service_of(context: Context, port: int) -> str:
    for name, service in context.profile.services.items():
        if any(mapping.host == port for mapping in service.host_ports):
            return name
    return context.service


@check("host.exposure", Where.HOST)
def exposure(context: Context) -> list[Finding]:
    """Services are published on this machine alone, or ask for an API key."""
    found = []
    for name, service in context.profile.services.items():
        said = exposed(context.profile, name)
        if said and asks_for_key(context.profile, service):
            found.append(ok(f"{said}; it asks for an API key"))
        elif said:
            seen = ", ".join(str(port) for port in service.host_ports)
            near = f"ports: ['{closer(service)}']" if service.network is None else "args: {host: 127.0.0.1}"
            cure = remedies.line(f"services: {{{name}: {{{near}}}}}")
            found.append(warning(said, seen, "127.0.0.1, or an API key", cure, case="open"))
    published = any(service.host_ports for service in context.profile.services.values())
    return found or ([ok("the services are published on this machine alone")] if published else [])


@check("up.refused", Where.HOST, needs="engine")
def refused(context: Context) -> list[Finding]:
    """`envgen up` of the service would find its checkouts, files, memory and GPU."""
    if context.container is not None and context.container.state == "running":  # `mounts.sources` sees its checkouts
        return []
    found = []
    for problem in context.refused:
        cure = remedies.command(problem.hint or f"envgen up -p {context.profile.name} {context.service}")
        seen, wanted = f"service {context.service}", "what `envgen up` needs"
        found.append(error(problem.message, seen, wanted, cure, case="refused"))
    return found or [ok(f"`envgen up {context.service}` finds what it needs on this machine")]


@check("weights.whole", Where.HOST, needs="engine")
def weights(context: Context) -> list[Finding]:
    """The weights that services name are whole, and at the commit that the lock names."""
    found = []
    for service, problems in context.weights.items():
        for problem in problems:
            cure = remedies.command(problem.hint or f"envgen model check {service} -p {context.profile.name}")
            seen, wanted = f"service {service}", "every file of the model, whole"
            found.append(error(problem.message, seen, wanted, cure, case="not-whole"))
        if not problems:
            found.append(ok(f"the weights of {service} are whole"))
    return found


@check("host.owners", Where.HOST, needs="engine")
def owners(context: Context) -> list[Finding]:
    """Checkouts and cache folders hold no files of root's."""
    found = []
    for one in context.foreign:
        seen = ", ".join(one.examples) + (f" and {one.count - len(one.examples)} more" if one.count > 3 else "")
        cure = remedies.envgen(context, "doctor", "--fix")
        title = f"{one.name}: {counted(one.count, 'file')} in {one.folder} of root's"
        found.append(warning(title, seen, "your own files", cure, case="of-root", folder=one.folder))
    return found


@check("host.clock", Where.HOST, needs="probe")
def clock(context: Context) -> list[Finding]:
    """The container's clock agrees with this machine's: build tools compare modification times made by both."""
    if context.asked is None or not context.inside.system.now:
        return []
    before, after = context.asked
    now = context.inside.system.now
    skew = now - before if now < before else max(0.0, now - after)
    if abs(skew) > SKEW:
        direction = "ahead" if skew > 0 else "behind"
        cure = remedies.command("sudo systemctl restart systemd-timesyncd")
        seen = f"the container's clock is {abs(skew):.0f} s {direction}"
        return [warning("the clocks of container and host differ", seen, "the same time", cure, case="skew")]
    return [ok("the clocks of container and host agree")]
