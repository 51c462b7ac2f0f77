"""A service on several machines: started together, watched together, taken down together.

vLLM's ranks notice little of each other: an idle head never learns that a worker died, and a worker that its head
died. So any container that ends, with whatever exit code, is the end of all of them.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event

from envgen.app import nodes
from envgen.app.crash import keeper
from envgen.app.services import known_service, workspace_of
from envgen.app.session import Session
from envgen.background import in_background
from envgen.engine.base import Container, Engine
from envgen.engine.compose import Compose
from envgen.engine.docker import connect
from envgen.engine.endpoint import find_endpoint
from envgen.errors import EngineError, EnvgenError, Problem, RefusedError, ServiceError
from envgen.profile.model import Cluster, GpuMode, Machine, Profile
from envgen.render.compose import cluster_file
from envgen.serve.launch import Launcher, Started, compose_for
from envgen.serve.preflight import gpu_mode
from envgen.serve.wait import Failure
from envgen.text import progress, reason_of

POLL = 0.5  # seconds between two looks at a rank
LOST = 10.0  # seconds without an answer of its engine after which a rank counts as gone


@dataclass(frozen=True)
class Rank:
    """One machine's part of a service."""

    node: str
    machine: Machine
    rank: int
    engine: Engine
    compose: Compose


def ranks(profile: Profile, root: Path, service: str, cluster: Cluster) -> list[Rank]:
    """Connect to all machines. EngineError, RefusedError: with the name of the machine."""

    def reach(node: str) -> tuple[Engine, GpuMode]:
        try:
            engine = connect(nodes.environment(profile.nodes[node]))
            gpu, problem = gpu_mode(engine, profile.gpu)
        except EngineError as error:
            raise _on(node, error) from None
        if problem is not None:
            raise RefusedError(f"{node}: {problem.message}", hint=problem.hint)
        return engine, gpu

    with ThreadPoolExecutor(len(cluster.nodes)) as pool:
        reached = list(pool.map(reach, cluster.nodes))
    folder = workspace_of(reached[0][0], profile, root).folder
    return [
        Rank(
            node,
            profile.nodes[node],
            number,
            engine,
            _compose(engine, profile, root, folder, service, cluster, node, gpu),
        )
        for number, (node, (engine, gpu)) in enumerate(zip(cluster.nodes, reached, strict=True))
    ]


def _on(node: str, error: EngineError) -> EngineError:
    return EngineError(f"{node}: {error.problems[0].message}", hint=error.problems[0].hint)


def _compose(
    engine: Engine, profile: Profile, root: Path, folder: Path, service: str, cluster: Cluster, node: str, gpu: GpuMode
) -> Compose:
    machine = profile.nodes[node]
    made = compose_for(engine, profile, root, folder, gpu)
    parts = ["head" if node == cluster.nodes[0] else "worker", *(["rdma"] if machine.rdma else [])]
    return replace(
        made,
        endpoint=find_endpoint(nodes.environment(machine)),
        files=[*made.files, *(folder / cluster_file(profile, service, part) for part in parts)],
        env={**made.env, **nodes.variables(profile, root, cluster, node)},
    )


def start(session: Session, service: str, *, timeout: float | None = None) -> Started:
    """Check, start the workers, then the head; wait until it answers while all are watched.

    RefusedError where the machines do not fit together: nothing has been touched then. ServiceError when any rank
    ends: then all are down, and the first one to end is named.
    """
    profile, root = session.profile(), session.loaded().project.root
    known_service(profile, service)
    _, _, cluster = nodes.choose(profile, service)
    progress(f"up {service}: profile {profile.name} on {', '.join(cluster.nodes)}")
    _refuse_running(profile, service, cluster)
    found = nodes.check(profile, root, service, progress)
    if failed := [one for one in found if one.level == "fail"]:
        refused = RefusedError(f"{service} was not started: its machines do not fit together")
        problems = (Problem(f"{'+'.join(one.nodes)}: {one.message}", None, one.hint) for one in failed)
        refused.problems = (*refused.problems, *problems)
        raise refused
    head, *workers = ranks(profile, root, service, cluster)
    launchers = {rank.node: _launcher(profile, root, service, rank) for rank in (head, *workers)}
    watch, at = Watch([]), ""
    try:
        for rank in workers:
            at = rank.node
            watch.ranks.append((rank, launchers[at].start(wait=False, install=False, timeout=None).container.id))
            progress(f"  {at}: rank {rank.rank} is started")
        at = head.node
        ends = in_background(lambda: watch.until_one_ends(lambda: _stop(head, service)))
        started = launchers[head.node].start(wait=True, install=False, timeout=timeout)
    except ServiceError as error:
        raise _all_down(_named(at, error), watch, launchers, (head, *workers)) from None
    except BaseException:
        watch.over.set()
        take_down((head, *workers))
        raise
    if watch.culprit is not None:
        raise _all_down(ServiceError(f"{service} is not ready"), watch, launchers, (head, *workers))
    watch.over.set()
    ends.result()
    return started


def _refuse_running(profile: Profile, service: str, cluster: Cluster) -> None:
    """What runs already is not started a second time, nor half of it."""
    running = [node for node, found in containers(profile, service, cluster) if any(one.running for one in found)]
    if running:
        raise RefusedError(
            f"{service} runs on {', '.join(running)} already",
            hint="`envgen nodes ps` shows it; `envgen nodes down` ends it on all machines",
        )


def _launcher(profile: Profile, root: Path, service: str, rank: Rank) -> Launcher:
    def say(line: str) -> None:
        progress(f"  {rank.node}: {line.strip()}")

    keep = keeper(rank.engine, profile, root, service, rank.compose.files)
    launcher = Launcher(rank.engine, rank.compose, profile, service, say, keep)
    launcher.closer = "`envgen nodes check` compares the machines; the crash bundle has the whole log"
    return launcher


def _stop(rank: Rank, service: str) -> None:
    """End the head, which would wait for a dead worker for half an hour."""
    rank.compose.run("kill", service, check=False, timeout=60)


def _all_down(
    error: ServiceError, watch: Watch, launchers: dict[str, Launcher], all_ranks: Sequence[Rank]
) -> ServiceError:
    """The error to raise once nothing is left of the start. The first rank that ended is the cause."""
    watch.over.set()
    if watch.culprit is not None:
        rank, container, reason = watch.culprit
        error = _named(f"{rank.node} (rank {rank.rank})", launchers[rank.node].failed(Failure(reason, container)))
    left = take_down(all_ranks)
    error.problems = (*error.problems, *(Problem(line) for line in left))
    return error


def _named(where: str, error: ServiceError) -> ServiceError:
    """The same error, with the machine in front."""
    first, *rest = error.problems
    error.problems = (replace(first, message=f"{where}: {first.message}"), *rest)
    return error


class Watch:
    """Looks at the containers of ranks until one ends. ``culprit``: the first that did, and how."""

    def __init__(self, ranks: list[tuple[Rank, str]]) -> None:
        self.ranks = ranks
        self.culprit: tuple[Rank, Container | None, str] | None = None
        self.over = Event()

    def until_one_ends(self, then: Callable[[], None]) -> None:
        """Blocks. ``then`` is called when one has ended, unless ``over`` was set before."""
        lost: dict[str, float] = {}
        while not self.over.wait(POLL):
            for rank, container_id in self.ranks:
                self.culprit = self._look(rank, container_id, lost)
                if self.culprit is not None:
                    then()
                    return

    @staticmethod
    def _look(rank: Rank, container_id: str, lost: dict[str, float]) -> tuple[Rank, Container | None, str] | None:
        try:
            container = rank.engine.container(container_id)
        except EngineError as error:
            since = lost.setdefault(rank.node, time.monotonic())
            reason = f"its engine has not answered for {LOST:g} s: {error.problems[0].message}"
            return (rank, None, reason) if time.monotonic() - since > LOST else None
        lost.pop(rank.node, None)
        if container is None:
            return rank, None, "its container was removed"
        if container.running:
            return None
        return rank, container, f"its program ended with {container.exit_code}"


def stay(session: Session, service: str, say: Callable[[str], None]) -> None:
    """Watch a service that runs until a rank ends; then take all down and raise ServiceError. Ctrl-C leaves it."""
    profile, root = session.profile(), session.loaded().project.root
    _, _, cluster = nodes.choose(profile, service)
    found = ranks(profile, root, service, cluster)
    watched = []
    for rank in found:
        running = rank.engine.containers(profile.compose_name, service)
        if not running:
            raise ServiceError(f"{service} does not run on {rank.node}", hint="envgen nodes up")
        watched.append((rank, running[0].id))
    say(f"watching {service} on {', '.join(cluster.nodes)}; Ctrl-C stops the watching only")
    watch = Watch(watched)
    watch.until_one_ends(lambda: None)
    launchers = {rank.node: _launcher(profile, root, service, rank) for rank in found}
    raise _all_down(ServiceError(f"{service} ended"), watch, launchers, found)


def take_down(found: Sequence[Rank]) -> list[str]:
    """End all ranks at the same time; what could not be done, with the command to type there."""

    def one(rank: Rank) -> str:
        try:
            rank.compose.run("--profile", "*", "down", "--remove-orphans", timeout=120)
        except EnvgenError as error:
            return _by_hand(rank.node, rank.machine, str(error.problems[0].message))
        return ""

    with ThreadPoolExecutor(max(1, len(found))) as pool:
        return [line for line in pool.map(one, found) if line]


def _by_hand(node: str, machine: Machine, reason: str) -> str:
    context = shlex.quote(machine.context)
    return (
        f"{node} could not be cleaned up ({reason}); when it answers again: envgen nodes down, or there: "
        f"docker --context {context} ps --filter label=dev.envgen.cluster"
    )


def stop(session: Session, service: str) -> tuple[list[str], list[str]]:
    """Take a service down on all machines; the containers that went, and what could not be done."""
    profile, root = session.profile(), session.loaded().project.root
    _, _, cluster = nodes.choose(profile, service)
    folder = workspace_of(None, profile, root).folder
    gone, left = [], []

    def one(node: str) -> tuple[list[str], str]:
        machine = profile.nodes[node]
        try:
            engine = connect(nodes.environment(machine))
            found = engine.containers(profile.compose_name, all=True)
            if found:
                compose = _compose(engine, profile, root, folder, service, cluster, node, GpuMode.NONE)
                compose.run("--profile", "*", "down", "--remove-orphans", timeout=120)
        except EnvgenError as error:
            return [], _by_hand(node, machine, reason_of(error))
        return [f"{node}: {container.name}" for container in found], ""

    with ThreadPoolExecutor(len(cluster.nodes)) as pool:
        for names, trouble in pool.map(one, cluster.nodes):
            gone += names
            left += [trouble] if trouble else []
    return gone, left


def containers(profile: Profile, service: str, cluster: Cluster) -> list[tuple[str, tuple[Container, ...]]]:
    """The service's containers on each machine. EngineError names the machine that does not answer."""

    def one(node: str) -> tuple[str, tuple[Container, ...]]:
        try:
            engine = connect(nodes.environment(profile.nodes[node]))
            return node, engine.containers(profile.compose_name, service, all=True)
        except EngineError as error:
            raise _on(node, error) from None

    with ThreadPoolExecutor(len(cluster.nodes)) as pool:
        return list(pool.map(one, cluster.nodes))


def logs(profile: Profile, service: str, cluster: Cluster, tail: int) -> list[tuple[str, str]]:
    """The end of the service's log on each machine."""

    def one(node: str) -> tuple[str, str]:
        try:
            engine = connect(nodes.environment(profile.nodes[node]))
            found = engine.containers(profile.compose_name, service, all=True)
            return node, "".join(engine.logs(container.id, tail=tail) for container in found)
        except EngineError as error:
            raise _on(node, error) from None

    with ThreadPoolExecutor(len(cluster.nodes)) as pool:
        return list(pool.map(one, cluster.nodes))
