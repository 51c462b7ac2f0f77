"""This machine: Docker and its plug-ins, disk, memory, GPU runtime, ports."""

from __future__ import annotations

import shlex

from envgen.doctor import remedies
from envgen.doctor.model import Context, Finding, Where, check, error, info, ok, warning
from envgen.engine.endpoint import OLDEST, outdated
from envgen.engine.values import Container
from envgen.inside.probe.facts import is_secret
from envgen.profile.exposure import asks_for_key, closer, exposed, left_open
from envgen.redact import redact
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


LABEL_RENDER = "dev.envgen.render"
LABEL_PROFILE = "dev.envgen.profile"
LABEL_PATCHES = "dev.envgen.patches"


@check("image.exists", Where.IMAGE, needs="engine")
def exists(context: Context) -> list[Finding]:
    """The profile's image is on this engine."""
    name, image = context.profile.image_name, context.image
    if image is None:
        title, cure = f"the image {name} isn't built", remedies.build(context)
        return [error(title, "no such image on this engine", name, cure, case="missing")]
    return [ok(f"{name} is {image.id[:19]}", id=image.id, created=str(image.created), size=image.size)]


@check("image.render", Where.IMAGE, needs="image")
def rendered_from_profile(context: Context) -> list[Finding]:
    """Its render digest is the one that the profile gives now."""
    assert context.image is not None
    labels = context.image.labels
    digest, owner = labels.get(LABEL_RENDER, ""), labels.get(LABEL_PROFILE, "")
    if not digest:
        seen, cure = "no label dev.envgen.render", remedies.build(context)
        return [warning("the image wasn't built by envgen", seen, "an image of this profile", cure, case="foreign")]
    if owner != context.profile.name:
        title, cure = "the image belongs to another profile", remedies.build(context)
        return [error(title, owner, context.profile.name, cure, case="other-profile")]
    if not context.digest:
        return [info("whether the image is up to date wasn't checked")]
    if digest != context.digest:
        title, cure = "the profile has changed since the image was built", remedies.build(context)
        return [warning(title, digest[:12], context.digest[:12], cure, case="outdated")]
    return [ok("the image is what the profile renders to now", digest=digest)]


@check("image.platform", Where.IMAGE, needs="image")
def platform(context: Context) -> list[Finding]:
    """It is for the architecture that the profile names, else the engine's own."""
    assert context.image is not None
    wanted = context.profile.base.platform
    arch = context.image.architecture
    own = context.engine.arch if context.engine else arch
    expected = wanted.value.split("/")[1] if wanted else own
    if arch != expected:
        title, cure = "the image is for another architecture", remedies.build(context)
        return [error(title, arch, expected, cure, case="wrong")]
    if arch != own:
        cure = remedies.line(f"base: {{platform: linux/{own}}}")
        title = "the image is for another machine than this engine's"
        return [warning(title, f"{arch}, emulated", own, cure, case="emulated")]
    return [ok(f"the image is for {arch}")]


@check("image.patches", Where.IMAGE, needs="image")
def patches(context: Context) -> list[Finding]:
    """Which patches are in it, as its label lists them."""
    assert context.image is not None
    listed = context.image.labels.get(LABEL_PATCHES, "").split()
    sources = context.profile.sources.values()
    if listed:
        names = ", ".join(name.removesuffix(".patch") for name in listed)
        return [ok(f"{len(listed)} patch{'es' * (len(listed) != 1)} in the image: {names}", patches=listed)]
    if any(source.patches and source.origin.kind != "checkout" for source in sources):
        return [
            info("no patch is in the image", "the profile names patches; `envgen patch list` says why none applies")
        ]
    return []


LOOPING = 3  # restarts that are not an accident any more


@check("container.running", Where.CONTAINER, needs="engine")
def running(context: Context) -> list[Finding]:
    """A container of the profile runs; without one there is no import truth."""
    container = context.container
    if context.is_throw_away:
        return [info("a throw-away container was started, with the mounts and variables of the service")]
    if container is None:
        if context.image is None:
            return []  # nothing to start: the image check says what to do
        title = "no container of this profile runs: what it imports was not checked"
        wanted = f"{context.service}, or a throw-away container (envgen doctor --run)"
        return [warning(title, "none running", wanted, remedies.up(context), case="none")]
    if container.state != "running":
        cure = remedies.up(context)
        title, seen = _state(container), _ended(context, container)
        if container.state == "paused":
            cure = remedies.command(f"docker unpause {container.name}")
        return [error(title, seen, "running", cure, case="ended")]
    if container.health == "unhealthy":
        cure = remedies.envgen(context, "logs", context.service)
        title = f"{container.name} is unhealthy"
        return [error(title, "its health check fails", "healthy", cure, case="unhealthy")]
    health = f", {container.health}" if container.health else ""
    return [ok(f"{container.name} is running{health}", id=container.id, since=str(container.started_at))]


def _state(one: Container) -> str:
    return f"{one.name} {'has' if one.state == 'exited' else 'is'} {one.state}"


def _ended(context: Context, container: Container) -> str:
    """How a container ended, and why where its log or the engine says so."""
    if container.state == "paused":
        return "docker pause"
    why = "killed for memory" if container.oom_killed else container.error or context.causes.get(container.name, "")
    return f"exit code {container.exit_code}" + (f": {why}" if why else "")


@check("container.others", Where.CONTAINER, needs="engine")
def others(context: Context) -> list[Finding]:
    """No other service of the profile has ended by itself, or is stuck."""
    found, alive = [], []
    for one in context.others:
        if one.service not in context.profile.services:
            continue
        if one.state == "running":
            alive.append(one.service)
        elif one.state in ("exited", "dead", "paused", "restarting") and (one.state != "exited" or one.exit_code):
            cure = remedies.command(shlex.join(["envgen", "logs", "-p", context.profile.name, one.service]))
            title, seen = _state(one), _ended(context, one)
            found.append(error(title, seen, "running, or removed", cure, case="died"))
    return found or ([ok(f"running too: {', '.join(sorted(alive))}")] if alive else [])


@check("container.image", Where.CONTAINER)
def current_image(context: Context) -> list[Finding]:
    """The container was created from the image that has the name now."""
    container, image = context.container, context.image
    if container is None or image is None or context.is_throw_away:
        return []
    if container.image_id and container.image_id != image.id:
        seen = f"{container.name} was created from {container.image_id[:19]}"
        expected = f"{context.profile.image_name} is now {image.id[:19]}"
        cure = remedies.up(context)
        return [warning("the container runs an older image", seen, expected, cure, case="older")]
    return [ok("the container runs the current image")]


def shown(name: str, value: str | None) -> str:
    """A variable of the project file as it may be printed."""
    if value is None:
        return f"{name} isn't set"
    return f"{name}=(not shown)" if is_secret(name) else redact(f"{name}={value}")


def _agrees(name: str, actual: str | None, wanted: str) -> bool:
    """Equal; PYTHONPATH may go on with what the base image has."""
    return actual == wanted or (name == "PYTHONPATH" and (actual or "").startswith(wanted + ":"))


@check("container.env", Where.CONTAINER)
def variables(context: Context) -> list[Finding]:
    """The container has the variables that the profile gives its service."""
    container = context.container
    if container is None or not context.env:
        return []
    actual = dict(container.env)
    wrong = [name for name, value in sorted(context.env.items()) if not _agrees(name, actual.get(name), value)]
    if not wrong:
        return [ok(f"{counted(len(context.env), 'variable of the profile is', 'variables of the profile are')} set")]
    some, rest = wrong[:5], f"; and {len(wrong) - 5} more" if len(wrong) > 5 else ""
    seen = "; ".join(shown(name, actual.get(name)) for name in some) + rest
    expected = "; ".join(shown(name, context.env[name]) for name in some) + rest
    some_differ = counted(len(wrong), "variable of the container differs", "variables of the container differ")
    title = f"{some_differ} from the profile"
    return [warning(title, seen, expected, remedies.renew(context), case="differ", names=wrong)]


@check("container.restart", Where.CONTAINER, needs="container")
def restart_policy(context: Context) -> list[Finding]:
    """A container that dies is not started for ever."""
    assert context.container is not None
    container, policy = context.container, context.container.restart_policy
    found = []
    if policy in ("always", "unless-stopped"):
        cure = remedies.command(f"docker update --restart on-failure:3 {container.name}")
        found.append(warning("the container is restarted without limit", policy, "no, or on-failure:N", cure,
                             case="endless"))  # fmt: skip
    if container.restarts >= LOOPING:
        title, seen = f"{container.name} is in a restart loop", f"started again {container.restarts} times"
        cure = remedies.envgen(context, "logs", context.service)
        found.append(error(title, seen, "0", cure, case="looping"))
    return found or [ok(f"restart policy: {policy or 'no'}")]
