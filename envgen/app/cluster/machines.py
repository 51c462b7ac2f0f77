"""Where the services of a profile run: on Docker's default engine, or on the machines of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from envgen.deployment import Deployment, LiveService, known_service, require_described
from envgen.deployment.host import host_of
from envgen.engine.process import in_background
from envgen.errors import EngineError, EnvgenError, UsageError
from envgen.profile.model import Profile

T = TypeVar("T")


def all_machines(deployment: Deployment, service: str | None = None) -> list[Deployment]:
    """``deployment`` on the machines of ``service``, the head's first.

    None: on the machines of the profile, or on one if a service has no `cluster`.
    """
    profile = deployment.profile
    if service is not None:
        return [deployment.on(node) for node in nodes_of(profile, (service,))]
    nodes = nodes_of(profile, ())
    if all(one.cluster is not None for one in profile.services.values()):
        return [deployment.on(node) for node in nodes]
    default = host_of(profile, "")
    for node in nodes:
        if host_of(profile, node) == default:
            return [deployment.on(node)]
    return [deployment.on("")]


def head_of(deployment: Deployment, service: str | None = None) -> Deployment:
    """``deployment`` on the machine where ``service`` answers: the head of its cluster, or Docker's
    default engine.
    """
    return all_machines(deployment, service)[0]


@dataclass
class Machines:
    """The machines of services, the head's first (``reached``), and those that do not answer
    (``lost``).
    """

    profile: Profile
    reached: list[Deployment] = field(default_factory=list)
    lost: dict[str, EngineError] = field(default_factory=dict)


def on_all(
    machines: Machines, work: Callable[[Deployment], T]
) -> tuple[list[tuple[Deployment, T]], list[str]]:
    """Do ``work`` on all machines at once. Returns the results, and for each machine that failed
    what to type there.
    """
    profile = machines.profile
    reached = machines.reached
    if not any(machine.node for machine in reached) and not machines.lost:
        return [(machine, work(machine)) for machine in reached], []
    done = []
    failed = dict(machines.lost)
    with ThreadPoolExecutor(max(1, len(reached))) as pool:
        futures = [(machine, pool.submit(work, machine)) for machine in reached]
    for machine, future in futures:
        try:
            done.append((machine, future.result()))
        except EngineError as problem:
            failed[machine.node] = problem
    left = []
    for node, error in failed.items():
        left.append(cleanup_hint(node, profile, error.message))
    return done, left


def cleanup_hint(node: str, profile: Profile, reason: str) -> str:
    """What to type for a machine that could not be cleaned up."""
    label = f"com.docker.compose.project={profile.compose_name}"
    reason = reason.removeprefix(f"{node}: ")
    return (
        f"{node} could not be cleaned up ({reason}); when it answers again: envgen down {profile.chosen}, "
        f"or on {node} itself: docker ps -aq --filter label={label} | xargs -r docker rm -f"
    )


def machine_of(service: LiveService, node: str | None = None) -> LiveService:
    """``service`` on ``node``, or on the first of its machines. EngineError if it can't be reached."""
    known_service(service.profile, service.name)
    cluster = service.described.cluster
    if node is None and cluster is not None:
        node = cluster.nodes[0]
    machines = machines_of(service.deployment, (service.name,), node)
    for error in machines.lost.values():
        raise error
    return service.on(machines.reached[0])


def machines_of(
    deployment: Deployment, names: Sequence[str] = (), node: str | None = None
) -> Machines:
    """The machines of services (none named: of all), or only ``node``."""
    profile = deployment.profile
    wanted = nodes_of(profile, deployment.of_profile(names))
    if node is not None:
        if node not in wanted:
            nodes = ", ".join(filter(None, wanted))
            hint = f"choose one of {nodes}" if nodes else "remove --node: no service has `cluster`"
            raise UsageError(
                f"{' '.join(names) or f'profile {profile.name}'} is not on {node}", hint=hint
            )
        wanted = [node]
    if wanted == [""]:
        return Machines(profile, [deployment])
    return connected(deployment, wanted)


def connected(deployment: Deployment, nodes: Sequence[str]) -> Machines:
    """``deployment`` on these machines, with one rendering for all, that of the first machine's
    image.
    """
    profile = deployment.profile
    reached, lost = connect_all(deployment, nodes)
    if not reached:
        return Machines(profile, lost=lost)
    first = next(iter(reached.values())).with_cached(profile=profile)
    known = {}
    with suppress(EnvgenError):  # a start raises it; what runs can be stopped
        known = {"rendered": first.rendered}
    return Machines(profile, [one.with_cached(**known) for one in reached.values()], lost)


def nodes_of(profile: Profile, names: Sequence[str] = ()) -> list[str]:
    """The machines of these services (none named: of all); "" for Docker's default engine."""
    for name in names:
        known_service(profile, name)
        if profile.services[name].cluster is not None:
            require_described(profile, name)
    places = dict[str, None]()
    elsewhere = False
    for name in names or profile.services:
        cluster = profile.services[name].cluster
        if cluster and profile.nodes.keys() >= set(cluster.nodes):
            places |= dict.fromkeys(cluster.nodes)
        else:
            elsewhere = True
    hosts = [host_of(profile, node) for node in places] if elsewhere else []
    if not places or (elsewhere and host_of(profile, "") not in hosts):
        places[""] = None
    return list(places)


def connect_all(
    deployment: Deployment, wanted: Sequence[str], seconds: float | None = None
) -> tuple[dict[str, Deployment], dict[str, EngineError]]:
    """Connect to machines at once. Returns those that answer (within ``seconds``), and the errors
    of the others.
    """
    from envgen.engine import sdk  # noqa: F401  # before the seconds begin: its import is not the engine's time

    machines = {node: deployment.on(node) for node in wanted}
    futures = {
        node: in_background(partial(getattr, one, "engine")) for node, one in machines.items()
    }
    done = wait(futures.values(), seconds).done
    reached = {}
    lost = {}
    for node, future in futures.items():
        late = machines[node].named(f"no answer within {seconds} s")
        error = future.exception() if future in done else EngineError(late)
        if error is None:
            reached[node] = machines[node]
        elif isinstance(error, EngineError):
            lost[node] = error
        else:
            raise error
    return reached, lost
