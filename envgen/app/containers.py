"""The containers of a profile as rows of `envgen ps` and `status`."""

from __future__ import annotations

from collections.abc import Sequence

from envgen.app.session import VARIANT_LABEL, Session
from envgen.binding import JsonDict
from envgen.deployment import Deployment, LiveService
from envgen.engine.owner import folder_of, same
from envgen.engine.values import COMPOSE_PROJECT, Container
from envgen.errors import EngineError, EnvgenError
from envgen.profile.exposure import is_local
from envgen.render.outputs import RENDER_LABEL
from envgen.serve.differences import CONFIG_HASH, settings_differ
from envgen.serve.ended import Ended, last_ends
from envgen.text import progress


def also_running(session: Session, deployment: Deployment) -> list[str]:
    """A line on each container of this folder that runs under another name: that of another profile,
    or one that the project had before.
    """
    own = deployment.profile.compose_name
    lines = []
    profiles = session.loaded().project.profiles.values()
    commands = {one.compose_name: f"envgen ps --profile {one.name}" for one in profiles}
    for row in deployment.engine.listed():
        name = row.labels.get(COMPOSE_PROJECT, own)
        folder = folder_of(row)
        if name != own and folder and same(folder, deployment.root):
            former = f"this project's name before: docker compose -p {name} down"
            lines.append(f"{row.name} ({commands.get(name, former)})")
    return lines


def changed(deployment: Deployment, containers: Sequence[Container]) -> dict[str, bool]:
    """Container ID -> whether its settings differ from the profile's. Nothing is rendered if none
    runs.
    """
    comparable = [
        one for one in containers if one.running and not one.one_off and CONFIG_HASH in one.labels
    ]
    try:
        answers = settings_differ(deployment, comparable) if comparable else {}
        if comparable and not answers and deployment.profile.compose is not None:
            _ = deployment.document  # raises what Compose has against it
        return answers
    except EngineError:
        raise
    except EnvgenError as error:  # of the profile's own Compose file
        progress(f"note: settings were not compared: {error.problems[0]}")
    except OSError as error:
        progress(f"note: settings were not compared: {error.strerror}")
    return {}


def rows_of(deployment: Deployment, containers: Sequence[Container]) -> list[JsonDict]:
    """The rows of containers on one machine."""
    services = deployment.profile.services
    differ = changed(deployment, containers)
    ends = last_ends(deployment.engine, [one for one in containers if one.service in services])
    rows = []
    for one in containers:
        row = as_data(deployment, one, differ.get(one.id), ends.get(one.id))
        rows.append(row)
    return rows


def as_data(
    deployment: Deployment, container: Container, differs: bool | None, end: Ended | None
) -> JsonDict:
    """A container as JSON; times have a zone. ``differs``: its settings differ from the profile's
    (None: unknown).

    ``end``: how its program ended last.
    """
    changes = ""
    if end is not None and end.failed:
        from envgen.app.history import since_it_worked  # rarely needed, and reads much

        changes = since_it_worked(LiveService(deployment, container.service))
    current = container.labels.get(RENDER_LABEL) == deployment.rendered.digest
    state = "current" if current else "differs"
    settings = None
    if differs is not None:
        settings = "differ" if differs else "current"
    started = container.started_at
    never_ended = container.running or container.state == "created"
    return {
        "changes": changes,
        "container": container.name,
        "ended": end and end.data(),
        "exit_code": None if never_ended else container.own_code,
        "health": container.health or None,
        "id": container.id,
        "image": state if container.service in deployment.profile.services else None,
        "node": deployment.node or None,
        "one_off": container.one_off,
        "open_ports": sorted({port.host for port in container.ports if not is_local(port.address)}),
        "ports": [str(port) for port in container.ports],
        "restarts": container.restarts,
        "service": container.service,
        "settings": settings,
        "since": None if started.startswith("0001-") or not started else started,
        "state": container.state,
        "variant": container.labels.get(VARIANT_LABEL) or None,
    }
