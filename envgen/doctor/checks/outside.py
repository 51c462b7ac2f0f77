"""Checks from outside: this machine, the image, and the container as the engine describes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from envgen.doctor import remedies
from envgen.doctor.model import (
    Context,
    Finding,
    Findings,
    Remedy,
    Section,
    check,
    error,
    info,
    ok,
    warning,
)
from envgen.engine.values import Container, EngineInfo
from envgen.errors import Problem
from envgen.text import counted, first_of

LOOPING = 3  # restarts that make a restart loop


# --- the host
# ---------------------------------------------------------------------------------------------------------


@check("host.docker", Section.HOST)
def docker(context: Context) -> Finding | None:
    """The engine's product and version, and what it can't do."""
    engine = context.engine
    if context.no_engine is not None:
        reason = context.no_engine.problems[0].message
        cure = Remedy(context.no_engine.command)
        return error("no Docker Engine", reason, "a running Docker Engine", cure, case="absent")
    if engine is None:
        return None
    words = [f"Docker {engine.version}", *(["rootless"] if engine.rootless else [])]
    words += (
        ["containerd's image store"]
        if engine.containerd_store
        else [engine.driver]
        if engine.driver
        else []
    )
    return ok(", ".join(words))


# --- the image
# --------------------------------------------------------------------------------------------------------


@check("image.current", Section.IMAGE, needs="stale")
def image(context: Context, stale: Sequence[Problem]) -> Findings:
    """The profile's image is on this engine, and is what would be built now, as `envgen up` asks
    it.
    """
    name = context.profile.image_name
    image = context.image
    for problem in stale:
        make, case = (error, "missing") if image is None else (warning, "outdated")
        evidence = f"{name} is {image.id[:19]}" if image else "no such image on this engine"
        yield make(
            problem.message,
            evidence,
            "an image of the profile as it is",
            Remedy(problem.hint),
            case=case,
        )
    if context.other_base:
        base = context.profile.base.image
        yield warning(
            f"{base} on this engine is another image than the lock has",
            f"{base} is {context.other_base[:19]}",
            "the digest in envgen.lock, which builds take",
            Remedy(f"`docker pull {base}`, or {context.profile.lock_command} --upgrade base"),
            case="base",
        )
    return ok(f"{name} is up to date") if image else None


@check("patches.mounted", Section.HOST)
def unpatched(context: Context) -> Findings:
    """Mounted checkouts have the profile's patches."""
    from envgen.patches.checkout import command_for  # git, and all for patches

    for name, lacks in context.unpatched.items():
        folder = context.checkouts.get(name, "")
        cure = Remedy(command_for(context.profile.sources[name], folder, lacks))
        title = (
            f"{name}: its checkout lacks {counted(len(lacks), 'patch', 'patches')} of the profile"
        )
        evidence = f"{folder} lacks {', '.join(lacks)}, or has edits in their lines"
        yield warning(title, evidence, "patches applied", cure, case="lacks")
    return None


# --- the container
# ----------------------------------------------------------------------------------------------------


@check("container.running", Section.CONTAINER, needs="engine")
def running(context: Context, _engine: EngineInfo) -> Findings:
    """A container of the profile runs, without which imports can't be checked; no other service of
    it has failed.
    """
    container = context.container
    end = context.ended.get(container.id) if container else None
    if context.is_temporary and not (end and end.failed):
        yield info("checked in a temporary container with the service's mounts and variables")
    elif container is not None:
        yield from _stands(container, context)
    elif context.image is not None:  # else image.current reports that
        title = "no container of this profile runs, so imports were not checked"
        wanted = f"{context.service}, or a temporary container (envgen doctor --run)"
        yield warning(title, "none running", wanted, remedies.up(context), case="none")
    for other in context.others:
        if other.service in context.profile.services:
            yield from _stands(other, context)
    return None


def _stands(container: Container, context: Context) -> Iterator[Finding]:
    """Whether a container runs, or how it ended, with the cause if its log or the engine has it."""
    end = context.ended.get(container.id)
    name = container.name
    is_mine = container is context.container
    why = end.why if end else container.error
    evidence = f"exit code {end.exit_code if end else container.exit_code}" + (
        f": {why}" if why else ""
    )
    if container.state == "paused":
        yield error(
            f"{name} is paused",
            "docker pause",
            "running",
            Remedy(f"docker unpause {name}"),
            case="paused",
        )
    elif container.health == "unhealthy" and container.state == "running":
        cure = remedies.envgen(context, "logs", container.service)
        yield error(
            f"{name} is unhealthy", "its health check fails", "healthy", cure, case="unhealthy"
        )
    elif container.state == "running":
        health = f", {container.health}" if container.health else ""
        yield ok(f"{name} is running{health}")
    elif end and end.asked and is_mine:
        wanted = "running, or a temporary container (envgen doctor --run)"
        cure = remedies.up(context)
        yield warning(f"{end}, so imports were not checked", evidence, wanted, cure, case="stopped")
    elif is_mine or (end and end.failed) or container.state in ("dead", "restarting"):
        state = f"{name} {'has' if container.state == 'exited' else 'is'} {container.state}"
        cure = (
            remedies.up(context) if is_mine else remedies.envgen(context, "up", container.service)
        )
        yield error(str(end or state), evidence, "running, or removed", cure, case="ended")
    elif end and end.asked and container.server:
        yield info(str(end), evidence)


@check("container.settings", Section.CONTAINER, needs="differing")
def settings(context: Context, differing: Sequence[str]) -> Finding:
    """The container has the image, variables, mounts and ports that `envgen up` would give it now."""
    if differing:
        evidence = "; ".join(first_of(differing, 5))
        differ = counted(len(differing), "setting differs", "settings differ")
        cure = remedies.up(context)
        return warning(
            f"{differ} from the profile's",
            evidence,
            "what `envgen up` would start",
            cure,
            case="differ",
        )
    return ok("the container has the profile's image and settings")


@check("container.restart", Section.CONTAINER, needs="container")
def restart_policy(context: Context, container: Container) -> Findings:
    """The container is in no restart loop, and Docker has started none of the servers again."""
    loops = container.restarts >= LOOPING
    if loops:
        title = f"{container.name} is in a restart loop"
        evidence = f"started again {container.restarts} times"
        yield error(
            title, evidence, "0", remedies.envgen(context, "logs", context.service), case="looping"
        )
    for end in context.ended.values():
        if end.runs and not (loops and end.container == container.name):
            cure = remedies.envgen(context, "logs", end.service)
            yield warning(
                str(end),
                end.why or "its log has no known cause",
                "0 restarts",
                cure,
                case="restarted",
            )
    return ok(f"restart policy: {container.restart_policy or 'no'}")


@check("container.changed", Section.CONTAINER)
def changed(context: Context) -> Finding | None:
    """What the machine and the image were when the service last started well."""
    return info(context.changes) if context.changes else None


@check("container.kernels", Section.CONTAINER)
def kernels(context: Context) -> list[Finding]:
    """The kernels that ran in a trace are of the backends that the log names."""
    title = f"{context.service} ran other kernels than its log names"
    again = remedies.envgen(context, "trace", context.service)
    return [
        ok(one.text)
        if one.good
        else warning(title, one.text, f"those of {one.wanted}", again, case="other")
        for one in context.ran
    ]
