"""What is seen from outside: this machine, the image, and the container as the engine describes it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from envgen.doctor import remedies
from envgen.doctor.model import Context, Finding, Host, Judged, Probe, Where, check, error, info, ok, warning
from envgen.engine.endpoint import OLDEST, outdated
from envgen.engine.gpu import gpu_offered
from envgen.engine.values import Container, EngineInfo, Image
from envgen.inside.probe.facts import is_secret
from envgen.profile.exposure import asks_for_key, exposed, on_loopback, renumbered
from envgen.profile.model import GpuMode
from envgen.redact import redact
from envgen.text import GIB, counted, first_of

LITTLE, TIGHT = 5 * GIB, 30 * GIB
# Seconds by which the clocks of this machine and of the container may differ before build tools take notice.
SKEW = 2.0
LABEL_RENDER, LABEL_PROFILE, LABEL_PATCHES = "dev.envgen.render", "dev.envgen.profile", "dev.envgen.patches"
LOOPING = 3  # restarts that are not an accident any more


# --- the host ---------------------------------------------------------------------------------------------------------


@check("host.docker", Where.HOST, needs="engine")
def docker(_context: Context, engine: EngineInfo) -> list[Finding]:
    """An engine answers that is new enough; which it is, and what it cannot do."""
    kinds = (("rootless", engine.rootless), ("userns-remap", engine.remapped))
    words = [f"{engine.product} {engine.version}", *(word for word, is_so in kinds if is_so)]
    words += ["containerd's image store"] if engine.containerd_store else [engine.driver] if engine.driver else []
    found = [ok(", ".join(words), endpoint=engine.endpoint)]
    if engine.product == "Podman":
        seen = "no BuildKit of its own; `docker buildx create`, then BUILDX_BUILDER"
        found.append(info("Podman needs a separate buildx builder", seen))
    return found


@check("host.plugins", Where.HOST, needs="host")
def plugins(_context: Context, host: Host) -> Judged:
    """buildx and compose v2 are installed, and new enough."""
    for name, there in (("buildx", host.buildx), ("compose", host.compose)):
        cure = remedies.command(f"sudo apt-get install docker-{name}-plugin")
        if there is None:
            yield error(f"docker {name} isn't installed", "no such plug-in", f"docker-{name}", cure, case="missing")
        elif outdated(name, there):
            yield error(f"docker {name} is too old", there, f"{OLDEST[name]} or newer", cure, case="old")
    buildx, compose = f"buildx {host.buildx}".strip(), f"compose {host.compose}".strip()
    return ok(f"{buildx} and {compose} are installed")


@check("host.disk", Where.HOST, needs="host")
def disk(_context: Context, host: Host) -> Finding | None:
    """There is room for the next build."""
    free, path = host.disk_free, host.disk_path
    if free is None:
        return None
    cure, seen = remedies.command("docker builder prune"), f"{free / GIB:.1f} GiB free below {path}"
    wanted = f"{TIGHT // GIB} GiB for a build"
    if free < LITTLE:
        return error("the disk of Docker is nearly full", seen, wanted, cure, case="full")
    if free < TIGHT:
        return warning("the disk of Docker is filling up", seen, wanted, cure, case="tight")
    return ok(f"{free // GIB} GiB free on the disk of Docker", path=path)


@check("host.gpu", Where.HOST, needs="engine")
def gpu_runtime(context: Context, engine: EngineInfo) -> Finding | None:
    """The engine can hand a GPU to a container, when the profile wants one."""
    wanted = context.profile.gpu
    if wanted is GpuMode.NONE:
        return None
    mode, problem = gpu_offered(engine, wanted)
    if problem is not None:
        words = (
            "runtime configure --runtime=docker"
            if wanted is GpuMode.ALL
            else "cdi generate --output=/etc/cdi/nvidia.yaml"
        )
        cure, case = remedies.command(f"sudo nvidia-ctk {words}"), {"cdi": "no-cdi", "all": "no-runtime"}
        seen = ", ".join(engine.runtimes) or "no runtimes"
        return error(problem.message, seen, f"gpu: {wanted.value}", cure, case=case.get(wanted.value, "no-gpu"))
    if mode is GpuMode.NONE:
        return info("the engine offers no GPU, so services start without one (gpu: auto)")
    return ok(f"the engine can give GPUs to containers (gpu: {mode.value})")


@check("host.memory", Where.HOST, needs="host")
def memory(context: Context, host: Host) -> Judged:
    """No limit is below `needs_memory`; on unified memory, what else acts when it runs low, beside `memory.floor`."""
    profile = context.profile
    yield from _limits(context, host)
    if profile.gpu is GpuMode.NONE or not profile.cuda.arch_list.shares_memory:
        return None
    if host.swap:
        seen = "a server that grows is swapped out while the machine thrashes; `sudo swapoff -a` while you serve"
        yield info(f"swap is on: {host.swap / GIB:.1f} GiB", seen)
    for name in host.killers:
        yield info(f"{name} runs", "it may end a server, or something else, before or after `memory.floor` does")
    return None


def _limits(context: Context, host: Host) -> Iterator[Finding]:
    """A container's own, which the engine tells, and those of the cgroups that engines put containers into."""
    service = context.profile.services.get(context.service)
    needs = service.needs_memory if service else None
    if needs is None:
        return
    wanted, container = f"needs_memory: {needs}", context.container
    if container is not None and not context.is_throw_away and 0 < container.memory < needs.bytes:
        yield warning("the container may use less memory than the service needs", f"{container.memory / GIB:.1f} GiB",
                      wanted, remedies.up(context), case="limit")  # fmt: skip
    for name, limit in host.limits.items():
        if limit < needs.bytes:
            cure = remedies.command(f"echo max | sudo tee /sys/fs/cgroup/{name}/memory.max")
            yield warning(f"containers in {name} share less memory than the service needs", f"{limit / GIB:.1f} GiB",
                          wanted, cure, case="shared-limit", group=name)  # fmt: skip


@check("host.ports", Where.HOST, needs="host")
def ports(context: Context, host: Host) -> Judged:
    """The ports of services that don't run are free."""
    services = context.profile.services
    by_port = {mapping.host: name for name, one in reversed(list(services.items())) for mapping in one.host_ports}
    busy = {*by_port, *(port for port, _ in host.busy_ports)}
    for port, owner in host.busy_ports:
        name = by_port.get(port, context.service)
        has_ports = name in services and services[name].ports
        free = next((number for number in range(port + 1, 65536) if number not in busy), port)
        other = f"ports: {renumbered(services[name], {port: free})}" if has_ports else f"args: {{port: {free}}}"
        cure = remedies.line(f"services: {{{name}: {{{other}}}}}")
        yield warning(f"port {port} is taken", owner, "free, or this profile's own service", cure,
                      case="taken", port=port)  # fmt: skip
    return ok("the published ports are free, or this profile's own") if by_port else None


@check("host.exposure", Where.HOST)
def exposure(context: Context) -> Judged:
    """Services are published on this machine alone, or ask for an API key."""
    for name, service in context.profile.services.items():
        reachable = exposed(context.profile, name)
        if reachable and asks_for_key(context.profile, service):
            yield ok(f"{reachable}; it asks for an API key")
        elif reachable:
            seen = ", ".join(str(port) for port in service.host_ports)
            near = f"ports: ['{on_loopback(service)}']" if service.network is None else "args: {host: 127.0.0.1}"
            cure = remedies.line(f"services: {{{name}: {{{near}}}}}")
            yield warning(reachable, seen, "127.0.0.1, or an API key", cure, case="open")
    published = any(service.host_ports for service in context.profile.services.values())
    return ok("the services are published on this machine alone") if published else None


@check("up.refused", Where.HOST, needs="engine")
def refused(context: Context, _engine: EngineInfo) -> Judged:
    """`envgen up` of the service would find its checkouts, files, memory and GPU."""
    if context.container is not None and context.container.state == "running":  # `mounts.sources` sees its checkouts
        return None
    for problem in context.refused:
        cure = remedies.command(problem.hint or f"envgen up -p {context.profile.name} {context.service}")
        yield error(problem.message, f"service {context.service}", "what `envgen up` needs", cure, case="refused")
    return ok(f"`envgen up {context.service}` finds what it needs on this machine")


@check("weights.whole", Where.HOST, needs="engine")
def weights(context: Context, _engine: EngineInfo) -> Judged:
    """The weights that services name are whole, and at the commit that the lock names."""
    for service, problems in context.weights.items():
        for problem in problems:
            cure = remedies.command(problem.hint or f"envgen model check {service} -p {context.profile.name}")
            yield error(problem.message, f"service {service}", "every file of the model, whole", cure, case="not-whole")
        if not problems:
            yield ok(f"the weights of {service} are whole")
    return None


@check("host.owners", Where.HOST, needs="engine")
def owners(context: Context, _engine: EngineInfo) -> Judged:
    """Checkouts and cache folders hold no files of root's."""
    for one in context.foreign:
        seen = ", ".join(one.examples) + (f" and {one.count - len(one.examples)} more" if one.count > 3 else "")
        title = f"{one.name}: {counted(one.count, 'file')} in {one.folder} of root's"
        cure = remedies.command(f'sudo chown -Rh "$(id -u):$(id -g)" {shlex.quote(one.folder)}')
        yield warning(title, seen, "your own files", cure, case="of-root", folder=one.folder)
    return None


@check("host.clock", Where.HOST, needs="probe")
def clock(context: Context, probe: Probe) -> Finding | None:
    """The container's clock agrees with this machine's: build tools compare modification times made by both."""
    now = probe.system.now
    if context.asked is None or not now:
        return None
    before, after = context.asked
    skew = now - before if now < before else max(0.0, now - after)
    if abs(skew) > SKEW:
        seen = f"the container's clock is {abs(skew):.0f} s {'ahead' if skew > 0 else 'behind'}"
        cure = remedies.command("sudo systemctl restart systemd-timesyncd")
        return warning("the clocks of container and host differ", seen, "the same time", cure, case="skew")
    return ok("the clocks of container and host agree")


# --- the image --------------------------------------------------------------------------------------------------------


@check("image.exists", Where.IMAGE, needs="engine")
def exists(context: Context, _engine: EngineInfo) -> Finding:
    """The profile's image is on this engine."""
    name, image = context.profile.image_name, context.image
    if image is None:
        title, cure = f"the image {name} isn't built", remedies.build(context)
        return error(title, "no such image on this engine", name, cure, case="missing")
    return ok(f"{name} is {image.id[:19]}", id=image.id, created=str(image.created), size=image.size)


@check("image.render", Where.IMAGE, needs="image")
def rendered_from_profile(context: Context, image: Image) -> Finding:
    """Its render digest is the one that the profile gives now."""
    digest, owner = image.labels.get(LABEL_RENDER, ""), image.labels.get(LABEL_PROFILE, "")
    cure, name = remedies.build(context), context.profile.name
    if not digest:
        seen = "no label dev.envgen.render"
        return warning("the image wasn't built by envgen", seen, "an image of this profile", cure, case="foreign")
    if owner != name:
        return error("the image belongs to another profile", owner, name, cure, case="other-profile")
    if not context.digest:
        return info("whether the image is up to date wasn't checked")
    if digest != context.digest:
        title = "the profile has changed since the image was built"
        seen = "; ".join(first_of(context.outdated, 4)) or digest[:12]
        return warning(title, seen, context.digest[:12], cure, case="outdated")
    return ok("the image is what the profile renders to now", digest=digest)


@check("image.platform", Where.IMAGE, needs="image")
def platform(context: Context, image: Image) -> Finding:
    """It is for the architecture that the profile names, else the engine's own."""
    wanted, arch = context.profile.base.platform, image.architecture
    own = context.engine.arch if context.engine else arch
    expected = wanted.value.split("/")[1] if wanted else own
    if arch != expected:
        return error("the image is for another architecture", arch, expected, remedies.build(context), case="wrong")
    if arch != own:
        cure = remedies.line(f"base: {{platform: linux/{own}}}")
        title = "the image is for another machine than this engine's"
        return warning(title, f"{arch}, emulated", own, cure, case="emulated")
    return ok(f"the image is for {arch}")


@check("image.patches", Where.IMAGE, needs="image")
def patches(context: Context, image: Image) -> Finding | None:
    """Which patches are in it, as its label lists them."""
    listed = image.labels.get(LABEL_PATCHES, "").split()
    if listed:
        names = ", ".join(name.removesuffix(".patch") for name in listed)
        return ok(f"{counted(len(listed), 'patch', 'patches')} in the image: {names}", patches=listed)
    if any(source.patches and source.origin.kind != "checkout" for source in context.profile.sources.values()):
        return info("no patch is in the image", "the profile names patches; `envgen patch list` says why none applies")
    return None


@check("patches.mounted", Where.HOST)
def unpatched(context: Context) -> Judged:
    """Mounted checkouts have the patches that the profile names for them."""
    for name, lacks in context.unpatched.items():
        folder = context.checkouts.get(name, "")
        cure = remedies.command(shlex.join(["envgen", "patch", "apply", name, "--checkout", folder]))
        title = f"{name}: its checkout lacks {counted(len(lacks), 'patch', 'patches')} that this release needs here"
        yield warning(title, f"{folder} lacks {', '.join(lacks)}", "the patches in it", cure, case="lacks")
    return None


# --- the container ----------------------------------------------------------------------------------------------------


@check("container.running", Where.CONTAINER, needs="engine")
def running(context: Context, _engine: EngineInfo) -> Finding | None:
    """A container of the profile runs; without one, import truth is unknown."""
    container = context.container
    if context.is_throw_away:
        return info("a throw-away container was started, with the mounts and variables of the service")
    if container is None:
        if context.image is None:
            return None  # nothing to start: the image check says what to do
        title = "no container of this profile runs: what it imports was not checked"
        wanted = f"{context.service}, or a throw-away container (envgen doctor --run)"
        return warning(title, "none running", wanted, remedies.up(context), case="none")
    if container.state != "running":
        unpause = remedies.command(f"docker unpause {container.name}")
        cure = unpause if container.state == "paused" else remedies.up(context)
        return error(_state(container), _ended(context, container), "running", cure, case="ended")
    if container.health == "unhealthy":
        cure = remedies.envgen(context, "logs", context.service)
        return error(f"{container.name} is unhealthy", "its health check fails", "healthy", cure, case="unhealthy")
    health = f", {container.health}" if container.health else ""
    return ok(f"{container.name} is running{health}", id=container.id, since=str(container.started_at))


def _state(one: Container) -> str:
    return f"{one.name} {'has' if one.state == 'exited' else 'is'} {one.state}"


def _ended(context: Context, container: Container) -> str:
    """How a container ended, and why where its log or the engine says so."""
    if container.state == "paused":
        return "docker pause"
    why = "killed for memory" if container.oom_killed else container.error or context.causes.get(container.name, "")
    return f"exit code {container.exit_code}" + (f": {why}" if why else "")


@check("container.others", Where.CONTAINER, needs="engine")
def others(context: Context, _engine: EngineInfo) -> Judged:
    """No other service of the profile has ended by itself, or is stuck."""
    mine = [one for one in context.others if one.service in context.profile.services]
    for one in mine:
        if one.state in ("dead", "paused", "restarting") or (one.state == "exited" and one.exit_code):
            cure = remedies.command(shlex.join(["envgen", "logs", "-p", context.profile.name, one.service]))
            yield error(_state(one), _ended(context, one), "running, or removed", cure, case="died")
    alive = sorted(one.service for one in mine if one.state == "running")
    return ok(f"running too: {', '.join(alive)}") if alive else None


@check("container.image", Where.CONTAINER, needs="container")
def current_image(context: Context, container: Container) -> Finding | None:
    """The container was created from the image that has the name now."""
    image = context.image
    if image is None or context.is_throw_away:
        return None
    if container.image_id and container.image_id != image.id:
        seen = f"{container.name} was created from {container.image_id[:19]}"
        expected = f"{context.profile.image_name} is now {image.id[:19]}"
        return warning("the container runs an older image", seen, expected, remedies.up(context), case="older")
    return ok("the container runs the current image")


def shown(name: str, value: str | None) -> str:
    """A variable of the project file as it may be printed."""
    if value is None:
        return f"{name} isn't set"
    return f"{name}=(not shown)" if is_secret(name) else redact(f"{name}={value}")


@check("container.env", Where.CONTAINER, needs="container")
def variables(context: Context, container: Container) -> Finding | None:
    """The container has the variables that the profile gives its service."""

    def agrees(name: str, wanted: str) -> bool:
        actual = container.env.get(name)  # PYTHONPATH may go on with what the base image has
        return actual == wanted or (name == "PYTHONPATH" and (actual or "").startswith(wanted + ":"))

    if not context.env:
        return None
    wrong = [name for name, value in sorted(context.env.items()) if not agrees(name, value)]
    if not wrong:
        return ok(f"{counted(len(context.env), 'variable of the profile is', 'variables of the profile are')} set")
    some, rest = wrong[:5], f"; and {len(wrong) - 5} more" if len(wrong) > 5 else ""
    seen = "; ".join(shown(name, container.env.get(name)) for name in some) + rest
    expected = "; ".join(shown(name, context.env[name]) for name in some) + rest
    differ = counted(len(wrong), "variable of the container differs", "variables of the container differ")
    return warning(f"{differ} from the profile", seen, expected, remedies.renew(context), case="differ", names=wrong)


@check("container.restart", Where.CONTAINER, needs="container")
def restart_policy(context: Context, container: Container) -> Judged:
    """A container that dies is not started for ever."""
    policy = container.restart_policy
    if policy in ("always", "unless-stopped"):
        cure = remedies.command(f"docker update --restart on-failure:3 {container.name}")
        title = "the container is restarted without limit"
        yield warning(title, policy, "no, or on-failure:N", cure, case="endless")
    if container.restarts >= LOOPING:
        title, seen = f"{container.name} is in a restart loop", f"started again {container.restarts} times"
        yield error(title, seen, "0", remedies.envgen(context, "logs", context.service), case="looping")
    return ok(f"restart policy: {policy or 'no'}")
