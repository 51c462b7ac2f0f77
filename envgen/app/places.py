"""Where the services of a profile run: on Docker's default engine, or on the machines of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, TypeVar

from envgen.app.session import VARIANT_LABEL
from envgen.deployment import Deployment, host_of, known_service, require_described
from envgen.engine.process import in_background
from envgen.engine.values import Container
from envgen.errors import EngineError, UsageError
from envgen.profile.exposure import is_local
from envgen.profile.model import Profile
from envgen.serve.differences import CONFIG_HASH, settings_differ
from envgen.serve.ended import Ended

T = TypeVar("T")


def all_at(deployment: Deployment, service: str | None = None) -> list[Deployment]:
    """``deployment`` on the machines of ``service``, the head's first.

    None: on the machines of the profile, or on one if a service has no `cluster`.
    """
    profile = deployment.profile
    found = nodes_of(profile, (service,) if service else ())
    if service is None and not all(one.cluster for one in profile.services.values()):
        default = host_of(profile, "")
        found = [next((node for node in found if host_of(profile, node) == default), "")]
    return [deployment.on(node) for node in found]


def at(deployment: Deployment, service: str | None = None) -> Deployment:
    """``deployment`` on the machine where ``service`` answers: the head of its cluster, or Docker's default engine."""
    return all_at(deployment, service)[0]


@dataclass
class Machines:
    """The machines of services, the head's first (``found``), and those that do not answer (``lost``)."""

    profile: Profile
    found: list[Deployment] = field(default_factory=list)
    lost: dict[str, EngineError] = field(default_factory=dict)


def on_all(found: Machines, work: Callable[[Deployment], T]) -> tuple[list[tuple[Deployment, T]], list[str]]:
    """Do ``work`` on all machines at once. Returns the results, and for each machine that failed what to type there."""
    if not any(deployment.node for deployment in found.found) and not found.lost:
        return [(deployment, work(deployment)) for deployment in found.found], []
    done, left = (
        [],
        [cleanup_hint(node, found.profile, error.problems[0].message) for node, error in found.lost.items()],
    )
    with ThreadPoolExecutor(max(1, len(found.found))) as pool:
        futures = [(deployment, pool.submit(work, deployment)) for deployment in found.found]
    for deployment, future in futures:
        error = future.exception()
        if isinstance(error, EngineError):
            left.append(cleanup_hint(deployment.node, found.profile, error.problems[0].message))
        else:
            done.append((deployment, future.result()))
    return done, left


def cleanup_hint(node: str, profile: Profile, reason: str) -> str:
    """What to type for a machine that could not be cleaned up."""
    label = f"com.docker.compose.project={profile.compose_name}"
    reason = reason.removeprefix(f"{node}: ")
    return (
        f"{node} could not be cleaned up ({reason}); when it answers again: envgen down {profile.chosen}, "
        f"or on {node} itself: docker ps -aq --filter label={label} | xargs -r docker rm -f"
    )


def rendered(deployment: Deployment) -> Deployment:
    """``deployment``, rendered: raises the errors of rendering before anything else is done."""
    _ = deployment.compose
    return deployment


def place_of(deployment: Deployment, service: str, node: str | None) -> Deployment:
    """``deployment`` on ``node``, or on the first machine of ``service``. EngineError if it can't be reached."""
    known_service(deployment.profile, service)
    cluster = deployment.profile.services[service].cluster
    found = places(deployment, (service,), node or (cluster.nodes[0] if cluster else None))
    for error in found.lost.values():
        raise error
    return found.found[0]


def places(deployment: Deployment, names: Sequence[str] = (), node: str | None = None) -> Machines:
    """The machines of services (none named: of all), or only ``node``."""
    profile = deployment.profile
    wanted = nodes_of(profile, names)
    if node is not None:
        if node not in wanted:
            nodes = ", ".join(filter(None, wanted))
            hint = f"choose one of {nodes}" if nodes else "remove --node: no service has `cluster`"
            raise UsageError(f"{' '.join(names) or f'profile {profile.name}'} is not on {node}", hint=hint)
        wanted = [node]
    if wanted == [""]:
        return Machines(profile, [rendered(deployment)])
    reached, lost = reach(deployment, wanted)
    if not reached:
        return Machines(profile, lost=lost)
    # One rendering for all: that of the first machine's image.
    first = next(iter(reached.values())).knowing(profile=profile)
    known = {"rendered": first.rendered, "workspace": first.workspace}
    return Machines(profile, [rendered(there.knowing(**known)) for there in reached.values()], lost)


def nodes_of(profile: Profile, names: Sequence[str] = ()) -> list[str]:
    """The machines of these services (none named: of all); "" for Docker's default engine."""
    for name in names:
        known_service(profile, name)
        require_described(profile, name)
    chosen = [profile.services[name] for name in names or profile.services]
    shared = [one.cluster.nodes for one in chosen if one.cluster and profile.nodes.keys() >= {*one.cluster.nodes}]
    found = list(dict.fromkeys(node for each in shared for node in each))
    if not found or (
        len(shared) < len(chosen) and host_of(profile, "") not in [host_of(profile, node) for node in found]
    ):
        found.append("")
    return found


def reach(
    deployment: Deployment, wanted: Sequence[str], seconds: float | None = None
) -> tuple[dict[str, Deployment], dict[str, EngineError]]:
    """Connect to machines at once. Returns those that answer (within ``seconds``), and the errors of the others."""
    there = {node: deployment.on(node) for node in wanted}
    futures = {node: in_background(one.connect) for node, one in there.items()}
    done = wait(futures.values(), seconds).done
    reached, lost = dict[str, Deployment](), dict[str, EngineError]()
    for node, future in futures.items():
        late = there[node].named(f"no answer within {seconds} s")
        error = future.exception() if future in done else EngineError(late)
        if error is None:
            reached[node] = there[node]
        elif isinstance(error, EngineError):
            lost[node] = error
        else:
            raise error
    return reached, lost


def changed(deployment: Callable[[], Deployment], found: Sequence[Container]) -> dict[str, bool]:
    """Container ID -> whether its settings differ from the profile's. ``deployment`` is called only if one can be."""
    comparable = [one for one in found if one.running and not one.one_off and CONFIG_HASH in one.labels]
    return settings_differ(deployment(), comparable) if comparable else {}


def as_data(
    container: Container, digest: str, differs: bool | None, node: str = "", end: Ended | None = None
) -> dict[str, Any]:
    """A container as JSON; times have a zone. ``differs``: its settings differ from the profile's (None: unknown).

    ``end``: how its program ended last.
    """
    current = container.labels.get("dev.envgen.render") == digest
    started = container.started_at
    return {
        "container": container.name,
        "ended": end and end.data(),
        "exit_code": None if container.running or container.state == "created" else container.exit_code,
        "health": container.health or None,
        "health_since": container.sick_since or None,
        "id": container.id,
        "image": "current" if current else "older",
        "node": node or None,
        "one_off": container.one_off,
        "open_ports": sorted({port.host for port in container.ports if not is_local(port.address)}),
        "ports": [str(port) for port in container.ports],
        "restarts": container.restarts,
        "service": container.service,
        "settings": None if differs is None else "differ" if differs else "current",
        "since": None if started.startswith("0001-") or not started else started,
        "state": container.state,
        "variant": container.labels.get(VARIANT_LABEL) or None,
    }
