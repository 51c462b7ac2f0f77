"""The container as the engine sees it: running, healthy, of the current image, with the profile's variables."""

from __future__ import annotations

import shlex

from envgen.doctor import remedies
from envgen.doctor.model import Context, Finding, Where, check, error, info, ok, warning
from envgen.engine.values import Container
from envgen.inside.probe.facts import is_secret
from envgen.redact import redact
from envgen.text import counted

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
