"""Where the services of a profile are: the engine that Docker itself would use, or each machine of a cluster."""

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

T = TypeVar("T")


def all_at(here: Deployment, service: str | None = None) -> list[Deployment]:
    """``here`` on the machines of ``service``, the head's first.

    None: of the profile; where a service is not shared, its machine alone.
    """
    profile = here.profile
    found = nodes_of(profile, (service,) if service else ())
    if service is None and not all(one.cluster for one in profile.services.values()):
        mine = host_of(profile, "")
        found = [next((node for node in found if host_of(profile, node) == mine), "")]
    return [here.on(node) for node in found]


def at(here: Deployment, service: str | None = None) -> Deployment:
    """``here`` where ``service`` answers: on the head of its machines, or the engine that Docker itself would use."""
    return all_at(here, service)[0]


@dataclass
class Machines:
    """The engines that services are on, the head's first; and the machines that do not answer, with the reason."""

    profile: Profile
    found: list[Deployment] = field(default_factory=list)
    lost: dict[str, EngineError] = field(default_factory=dict)


def each(found: Machines, work: Callable[[Deployment], T]) -> tuple[list[tuple[Deployment, T]], list[str]]:
    """Do it at all places at the same time; what could not be done on a machine, with what to type there."""
    if not any(one.node for one in found.found) and not found.lost:
        return [(one, work(one)) for one in found.found], []
    done, left = [], [by_hand(node, found.profile, error.problems[0].message) for node, error in found.lost.items()]
    with ThreadPoolExecutor(max(1, len(found.found))) as pool:
        asked = [(one, pool.submit(work, one)) for one in found.found]
    for one, answer in asked:
        error = answer.exception()
        if isinstance(error, EngineError):
            left.append(by_hand(one.node, found.profile, error.problems[0].message))
        else:
            done.append((one, answer.result()))
    return done, left


def by_hand(node: str, profile: Profile, reason: str) -> str:
    """What to type where a machine could not be asked to end its part."""
    label = f"com.docker.compose.project={profile.compose_name}"
    reason = reason.removeprefix(f"{node}: ")
    return (
        f"{node} could not be cleaned up ({reason}); when it answers again: envgen down {profile.chosen}, "
        f"or on {node} itself: docker ps -aq --filter label={label} | xargs -r docker rm -f"
    )


def rendered(here: Deployment) -> Deployment:
    """``here``, where it can be rendered: what can't fails before anything is done with it."""
    _ = here.compose
    return here


def place_of(here: Deployment, service: str, node: str | None) -> Deployment:
    """Where ``service`` is: on ``node``, by default the first of its machines. EngineError if that can't be reached."""
    known_service(here.profile, service)
    cluster = here.profile.services[service].cluster
    found = places(here, (service,), node or (cluster.nodes[0] if cluster else None))
    for error in found.lost.values():
        raise error
    return found.found[0]


def places(here: Deployment, names: Sequence[str] = (), node: str | None = None) -> Machines:
    """Where these services are (none named: all of the profile). ``node``: there alone."""
    profile = here.profile
    wanted = nodes_of(profile, names)
    if node is not None:
        if node not in wanted:
            there = ", ".join(filter(None, wanted))
            hint = f"they are on {there}" if there else "no service has `cluster`"
            raise UsageError(f"{' '.join(names) or f'profile {profile.name}'} is not on {node}", hint=hint)
        wanted = [node]
    if wanted == [""]:
        return Machines(profile, [rendered(here)])
    reached, lost = reach(here, wanted)
    made = Machines(profile, lost=lost)
    if reached:  # one rendering for all: that of the first machine's image
        first = next(iter(reached.values())).knowing(profile=profile)
        known = {"rendered": first.rendered, "workspace": first.workspace}
        made.found = [rendered(one.knowing(**known)) for one in reached.values()]
    return made


def nodes_of(profile: Profile, names: Sequence[str] = ()) -> list[str]:
    """The machines of these services; "" for those that are not shared."""
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
    here: Deployment, wanted: Sequence[str], seconds: float | None = None
) -> tuple[dict[str, Deployment], dict[str, EngineError]]:
    """Connect to these machines at the same time: the profile there, and why others don't answer (in ``seconds``)."""
    there = {node: here.on(node) for node in wanted}
    asked = {node: in_background(one.connect) for node, one in there.items()}
    done = wait(asked.values(), seconds).done
    reached, lost = dict[str, Deployment](), dict[str, EngineError]()
    for node, answer in asked.items():
        late = there[node].named(f"no answer within {seconds} s")
        error = answer.exception() if answer in done else EngineError(late)
        if error is None:
            reached[node] = there[node]
        elif isinstance(error, EngineError):
            lost[node] = error
        else:
            raise error
    return reached, lost


def changed(here: Callable[[], Deployment], found: Sequence[Container]) -> dict[str, bool]:
    """Container id -> whether `up` would replace it for its settings; ``here`` is asked where one can be compared."""
    known = [one for one in found if one.running and not one.one_off and CONFIG_HASH in one.labels]
    place = here() if known else None
    return settings_differ(place, known) if place else {}


def as_data(container: Container, digest: str, differs: bool | None, node: str = "") -> dict[str, Any]:
    """A container for machines: null for what is not there, times with their zone.

    ``differs``: whether its settings are others than the profile's; None: not known.
    """
    current = container.labels.get("dev.envgen.render") == digest
    started = container.started_at
    return {
        "container": container.name,
        "exit_code": None if container.running or container.state == "created" else container.exit_code,
        "health": container.health or None,
        "health_since": container.sick_since or None,
        "id": container.id,
        "image": "current" if current else "older",
        "node": node or None,
        "one_off": container.one_off,
        "open_ports": sorted({port.host for port in container.ports if not is_local(port.address)}),
        "ports": [str(port) for port in container.ports],
        "service": container.service,
        "settings": None if differs is None else "differ" if differs else "current",
        "since": None if started.startswith("0001-") or not started else started,
        "state": container.state,
        "variant": container.labels.get(VARIANT_LABEL) or None,
    }
