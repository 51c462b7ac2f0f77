"""Where the services of a profile are: the engine that Docker itself would use, or each machine of a cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from envgen.app import nodes, ownership
from envgen.app.session import Session, known_service
from envgen.engine.client import Engine, connect
from envgen.engine.compose import Compose
from envgen.engine.endpoint import Endpoint, find_endpoint
from envgen.engine.owner import ours
from envgen.engine.process import in_background
from envgen.engine.values import Container
from envgen.errors import EngineError, NotFoundError, UsageError, named
from envgen.profile.exposure import is_local
from envgen.profile.model import Profile
from envgen.render.compose import cluster_file
from envgen.render.locking import lock_of_image
from envgen.render.outputs import Workspace, prepare
from envgen.serve import preflight
from envgen.serve.launch import CONFIG_HASH, compose_for, settings_differ

T = TypeVar("T")


def workspace_of(engine: Engine | None, profile: Profile, root: Path) -> Workspace:
    """The files as rendered for the image that ``engine`` has; None: as the project is now."""
    image = engine.image(profile.image_name) if engine is not None else None
    return prepare(profile, root, lock_of_image(profile, root, image.labels if image else None))


@dataclass(frozen=True)
class At:
    """A machine to ask about a profile, which has that machine's folders.

    ``node``: its name; "" for the engine that Docker itself would use.
    """

    profile: Profile
    node: str = ""

    @property
    def _environment(self) -> dict[str, str] | None:
        return nodes.environment(self.profile.nodes[self.node]) if self.node else None

    @property
    def endpoint(self) -> Endpoint:
        """The address of its engine."""
        return find_endpoint(self._environment)

    def connect(self) -> Engine:
        """Its engine. EngineError with the machine's name."""
        try:
            return connect(self._environment)
        except EngineError as error:
            raise (named(self.node, error) if self.node else error) from None

    def named(self, text: str) -> str:
        """``text`` with the machine in front."""
        return f"{self.node}: {text}" if self.node else text


def all_at(profile: Profile, service: str | None = None) -> list[At]:
    """The machines of ``service``, the head's first. None: of the profile; where a service is not shared, its alone."""
    found = nodes_of(profile, (service,) if service else ())
    if service is None and not all(one.cluster for one in profile.services.values()):
        here = _host("", profile)
        found = [next((node for node in found if _host(node, profile) == here), "")]
    return [At(nodes.on_machine(profile, node), node) for node in found]


def at(profile: Profile, service: str | None = None) -> At:
    """Where ``service`` answers: on the head of its machines, or the engine that Docker itself would use."""
    return all_at(profile, service)[0]


@dataclass(frozen=True)
class Opened:
    """A profile with an engine and its Compose project there. ``digest``: of what is rendered for it now.

    ``node``: the machine's name; "" for the engine that Docker itself would use.
    """

    root: Path
    profile: Profile
    engine: Engine
    compose: Compose
    digest: str
    node: str = ""

    def running(self, service: str) -> Container:
        """The container of a running service of ours. NotFoundError with the command that starts it."""
        known_service(self.profile, service)
        ownership.require(self.engine, self.profile, self.root)
        found = self.engine.containers(self.profile.compose_name, service)
        if not found:
            what = f"{service} is not running" + (f" on {self.node}" if self.node else "")
            raise NotFoundError(what, hint=f"envgen up {service} --profile {self.profile.name}")
        return found[0]

    def named(self, text: str) -> str:
        """``text`` with the machine in front."""
        return f"{self.node}: {text}" if self.node else text

    def to_start(self, service: str) -> Opened:
        """The same for a start of ``service``."""
        folder = self.compose.files[0].parent.parent
        return replace(self, compose=_compose(self.engine, self.profile, self.root, folder, self.node, (service,)))


@dataclass
class Places:
    """The engines that services are on, the head's first; and the machines that do not answer, with the reason."""

    profile: Profile
    found: list[Opened] = field(default_factory=list)
    lost: dict[str, EngineError] = field(default_factory=dict)


def each(found: Places, work: Callable[[Opened], T]) -> tuple[list[tuple[Opened, T]], list[str]]:
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
        f"{node} could not be cleaned up ({reason}); when it answers again: envgen down --profile {profile.name}, "
        f"or on {node} itself: docker ps -aq --filter label={label} | xargs -r docker rm -f"
    )


def opened(session: Session) -> Opened:
    """The profile on the engine that Docker itself would use."""
    root, profile = session.loaded().project.root, session.profile()
    engine = connect()
    return _opened(engine, profile, root, workspace_of(engine, profile, root))


def _opened(engine: Engine, profile: Profile, root: Path, made: Workspace, node: str = "") -> Opened:
    profile = nodes.on_machine(profile, node) if node else profile
    compose = _compose(engine, profile, root, made.folder, node, tuple(profile.services))
    return Opened(root, profile, engine, compose, made.rendered.digest, node)


def place_of(session: Session, service: str, node: str | None) -> Opened:
    """Where ``service`` is: on ``node``; not said: on the first of its machines. EngineError where that is lost."""
    profile = session.profile()
    known_service(profile, service)
    cluster = profile.services[service].cluster
    found = places(session, (service,), node or (cluster.nodes[0] if cluster else None))
    for error in found.lost.values():
        raise error
    return found.found[0]


def places(session: Session, names: Sequence[str] = (), node: str | None = None) -> Places:
    """Where these services are (none named: all of the profile). ``node``: there alone."""
    root, profile = session.loaded().project.root, session.profile()
    wanted = nodes_of(profile, names)
    if node is not None:
        if node not in wanted:
            there = ", ".join(filter(None, wanted))
            hint = f"they are on {there}" if there else "no service has `cluster`"
            raise UsageError(f"{' '.join(names) or f'profile {profile.name}'} is not on {node}", hint=hint)
        wanted = [node]
    if wanted == [""]:
        return Places(profile, [opened(session)])
    reached, lost = reach(profile, wanted)
    made = Places(profile, lost=lost)
    if reached:
        workspace = workspace_of(next(iter(reached.values())), profile, root)
        made.found = [_opened(engine, profile, root, workspace, one) for one, engine in reached.items()]
    return made


def nodes_of(profile: Profile, names: Sequence[str] = ()) -> list[str]:
    """The machines of these services; "" for those that are not shared."""
    for name in names:
        known_service(profile, name)
        if profile.services[name].cluster is not None:
            nodes.choose(profile, name)  # names the machine that is not described
    chosen = [profile.services[name] for name in names or profile.services]
    shared = [one.cluster.nodes for one in chosen if one.cluster and profile.nodes.keys() >= {*one.cluster.nodes}]
    found = list(dict.fromkeys(node for each in shared for node in each))
    if not found or (len(shared) < len(chosen) and _host("", profile) not in [_host(node, profile) for node in found]):
        found.append("")
    return found


def _host(node: str, profile: Profile) -> str:
    try:
        return At(profile, node).endpoint.host
    except EngineError:  # it is reported where it is connected to
        return ""


def reach(
    profile: Profile, wanted: Sequence[str], seconds: float | None = None
) -> tuple[dict[str, Engine], dict[str, EngineError]]:
    """Connect to these machines at the same time: the engines, and why others do not answer (within ``seconds``)."""
    asked = {node: in_background(At(profile, node).connect) for node in wanted}
    done = wait(asked.values(), seconds).done
    reached, lost = dict[str, Engine](), dict[str, EngineError]()
    for node, answer in asked.items():
        late = At(profile, node).named(f"no answer within {seconds} s")
        error = answer.exception() if answer in done else EngineError(late)
        if error is None:
            reached[node] = answer.result()
        elif isinstance(error, EngineError):
            lost[node] = error
        else:
            raise error
    return reached, lost


def _compose(
    engine: Engine, profile: Profile, root: Path, folder: Path, node: str, names: Sequence[str]
) -> Compose:  # fmt: skip
    gpu, _ = preflight.gpu_mode(engine, profile.gpu)
    if not node:
        return compose_for(engine, profile, root, folder, gpu)
    made = compose_for(engine, profile, root, folder, gpu, At(profile, node).endpoint)
    files, env = list(made.files), dict(made.env)
    for name in names:
        cluster = profile.services[name].cluster
        if cluster is not None and node in cluster.nodes:
            parts = ["head" if node == cluster.nodes[0] else "worker", *(["rdma"] if profile.nodes[node].rdma else [])]
            files += [folder / cluster_file(profile, name, part) for part in parts]
            env |= nodes.variables(profile, root, cluster, node)
    return replace(made, files=files, env=env)


def changed(here: Callable[[], Opened], found: Sequence[Container]) -> dict[str, bool]:
    """Container id -> whether `up` would replace it for its settings; ``here`` is asked where one can be compared."""
    known = [one for one in found if one.running and not one.one_off and CONFIG_HASH in one.labels]
    place = here() if known else None
    return settings_differ(place.compose, place.profile, known, os.environ) if place else {}


def containers_of(here: Opened, names: Sequence[str], *, all: bool) -> tuple[Container, ...]:
    """The containers of these services (none named: everything of the profile). UsageError for an unknown name."""
    for name in names:
        known_service(here.profile, name)
    found = ours(here.engine.containers(here.profile.compose_name, all=all), here.root)
    return tuple(one for one in found if not names or one.service in names)


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
    }
