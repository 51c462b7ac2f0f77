"""The container as the engine sees it: running, healthy, of the current image, with the profile's variables."""

from __future__ import annotations

from envgen.doctor import remedies
from envgen.doctor.model import Context, Finding, error, info, ok, warning
from envgen.doctor.probe_facts import is_safe


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
        return [warning(title, "none running", wanted, remedies.up(context))]
    if container.state != "running":
        cure = remedies.up(context)
        return [error(f"{container.name} is {container.state}", f"exit code {container.exit_code}", "running", cure)]
    if container.health == "unhealthy":
        cure = remedies.envgen(context, "logs", context.service)
        return [error(f"{container.name} is unhealthy", "its health check fails", "healthy", cure)]
    health = f", {container.health}" if container.health else ""
    return [ok(f"{container.name} is running{health}", id=container.id, since=str(container.started_at))]


def current_image(context: Context) -> list[Finding]:
    """The container was created from the image that the name stands for now."""
    container, image = context.container, context.image
    if container is None or image is None or context.is_throw_away:
        return []
    if container.image_id and container.image_id != image.id:
        seen = f"{container.name} was created from {container.image_id[:19]}"
        expected = f"{context.profile.image_name} is now {image.id[:19]}"
        return [warning("the container runs an older image", seen, expected, remedies.up(context))]
    return [ok("the container runs the current image")]


def shown(name: str, value: str | None) -> str:
    """A variable as it may be printed."""
    if value is None:
        return f"{name} isn't set"
    return f"{name}={value}" if is_safe(name) else f"{name}=(not shown)"


def _agrees(name: str, actual: str | None, wanted: str) -> bool:
    """Equal; PYTHONPATH may go on with what the base image has."""
    return actual == wanted or (name == "PYTHONPATH" and (actual or "").startswith(wanted + ":"))


def variables(context: Context) -> list[Finding]:
    """The container has the variables that the profile gives its service."""
    container = context.container
    if container is None or not context.env:
        return []
    actual = dict(container.env)
    wrong = [name for name, value in sorted(context.env.items()) if not _agrees(name, actual.get(name), value)]
    if not wrong:
        return [ok(f"all {len(context.env)} variables of the profile are set")]
    some, rest = wrong[:5], f"; and {len(wrong) - 5} more" if len(wrong) > 5 else ""
    seen = "; ".join(shown(name, actual.get(name)) for name in some) + rest
    expected = "; ".join(shown(name, context.env[name]) for name in some) + rest
    title = f"{len(wrong)} variable{'s' * (len(wrong) > 1)} of the container differ from the profile"
    return [warning(title, seen, expected, remedies.renew(context), names=wrong)]
