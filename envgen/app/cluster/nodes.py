"""Several machines: ask each in a container of the profile's image. Nothing else runs there."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from envgen.app.session import the_service
from envgen.binding import JsonObject
from envgen.deployment import LiveService
from envgen.deployment.project import Deployment, require_described
from envgen.doctor.model import Finding, Severity
from envgen.doctor.nodes import (
    NodeFacts,
    about,
    between,
    completed,
    hint_of,
)
from envgen.engine.values import COMPOSE_PROJECT, ContainerMount
from envgen.errors import EngineError, Problem
from envgen.inside import run
from envgen.profile.caches import HUGGINGFACE
from envgen.profile.model import Profile
from envgen.profile.service import Service
from envgen.render import environment as names

PROGRAM = run.Program("node")
FACTS = (
    25.0  # seconds for the facts of one machine: an import of nothing, and samples of the weights
)


def choose(profile: Profile, wanted: str | None) -> str:
    """The service to check: ``wanted``, or the only one with `cluster`. UsageError otherwise."""
    clustered = [name for name, service in profile.services.items() if service.cluster is not None]
    hint = "write `cluster: {nodes: [spark-1, spark-2]}`; see docs/two-machines.md"
    return the_service(profile, wanted, clustered, "names no machines", hint)


def look(machines: Sequence[Deployment], name: str) -> list[NodeFacts]:
    """Ask all machines of service ``name`` in parallel, the head first."""
    nodes = []
    for rank, deployment in enumerate(machines):
        node = deployment.node
        nodes.append(NodeFacts(node, deployment.profile.nodes[node], rank))
    with ThreadPoolExecutor(len(nodes)) as pool:
        list(pool.map(lambda node, machine: _look_at(node, machine, name), nodes, machines))
    for facts in nodes[1:]:
        facts.head = nodes[0]
    return nodes


def _look_at(node: NodeFacts, deployment: Deployment, name: str) -> None:
    """Fill in what one machine says."""
    try:
        engine = node.engine = deployment.engine
        node.version = engine.info().version
        node.arch = engine.info().arch
        node.image = deployment.image
        node.image_name = deployment.profile.image_name
        if node.rank == 0:
            node.stale = deployment.image_problems
        if node.image is None:
            return
        project = deployment.profile.compose_name
        running = engine.containers()
        of_project = [one for one in running if one.labels.get(COMPOSE_PROJECT) == project]
        own = [one for one in of_project if one.service == name and not one.one_off]
        node.runs = bool(own)
        node.gpus = tuple(one for one in running if one.gpu and one not in own)
        _ask_inside(node, LiveService(deployment, name))
    except EngineError as error:
        problem = error.problems[0]
        node.trouble = problem.message.removeprefix(f"{node.name}: ")
        node.hint = problem.hint


def _ask_inside(node: NodeFacts, asked: LiveService) -> None:
    """Fill in what a container of the image sees there, with the mounts of the service."""
    profile = asked.profile
    service = asked.described
    mounts = [replace(mount, read_only=True) for mount in asked.mounts()]
    node.model = _folder_of_model(profile, service, mounts)
    certificates = asked.deployment.own_files.get("network.ca_certificates")
    if certificates:
        mounts.append(ContainerMount(str(certificates), names.CA_FILE, read_only=True))
    request = {"ports": _wanted_ports(node, service), "model": model_of(profile, service)}
    limits = {key: (limit, limit) for key, limit in profile.ulimits.items()}
    if node.machine.rdma:
        limits["memlock"] = -1, -1
    ask = partial(_ask, node, profile, request, mounts=mounts, absent=node.absent)
    try:
        answer = ask(ulimits=limits)
    except EngineError as error:
        _, refused, node.refused = error.message.rpartition("error setting rlimit")
        if not refused:
            raise
        answer = ask()  # to report everything else that is wrong there
    if isinstance(answer, run.NoAnswer):
        node.trouble = f"its container could not be asked: {answer.seen}"
        return
    node.facts = answer
    made = [cache.path.path for cache in profile.caches.values()]  # Docker creates them
    node.absent = [mount for mount in node.absent if mount.target not in made]


def _wanted_ports(node: NodeFacts, service: Service) -> list[int]:
    """The ports that must be free on the head, unless it runs there."""
    if node.rank != 0 or node.runs:
        return []
    ports = [port.container for port in service.ports]
    if service.cluster:
        ports.insert(0, service.cluster.port)
    return ports


def _ask(node: NodeFacts, profile: Profile, request: JsonObject, **more: Any) -> Any:
    """The answer of PROGRAM in a container of the image (a dict), or a ``run.NoAnswer``."""
    assert node.engine is not None
    image = profile.image_name
    python = profile.base.python
    execute = run.in_image(node.engine, image, network="host", **more)
    return run.ask(execute, python, PROGRAM, request, timeout=FACTS)


def model_of(profile: Profile, service: Service) -> dict[str, str] | None:
    """Where the service finds its weights, for ``inside/node.py``; None if only vLLM knows."""
    cache = profile.caches.get(HUGGINGFACE.name)
    if service.model is not None and cache is not None:
        return {
            "home": cache.path.path,
            "repo": service.model.repo,
            "revision": service.model.revision,
        }
    path = service.command[2] if len(service.command) > 2 else ""
    return {"folder": path} if path.startswith("/") else None


def _folder_of_model(profile: Profile, service: Service, mounts: Sequence[ContainerMount]) -> str:
    """The machine's own folder of the model, where it is in a mounted one; else ""."""
    model = model_of(profile, service) or {}
    path = model.get("folder", "")
    if "repo" in model:
        path = f"{model['home']}/hub/models--{model['repo'].replace('/', '--')}"
    for mount in mounts:
        if mount.kind == "bind" and f"{path}/".startswith(f"{mount.target}/"):
            return mount.source + path.removeprefix(mount.target)
    return ""


def check(service: LiveService, *, reached: Sequence[Deployment] = ()) -> list[Finding]:
    """Check what must hold before a service starts on its machines. Only probes run; nothing is
    changed.

    ``reached``: machines that are connected already.
    """
    profile = service.profile
    name = service.name
    described = service.described
    cluster = require_described(profile, name)
    connected = {one.node: one for one in reached}
    machines = []
    for machine in cluster.nodes:
        machines.append(connected.get(machine) or service.deployment.on(machine))
    nodes = look(machines, name)
    findings = []
    for node in nodes:
        findings += about(node, profile, described, cluster)
    findings += between([node for node in nodes if node.facts], described)
    return [completed(one, profile, name) for one in findings]


def problems(ranks: Sequence[LiveService], service: LiveService) -> list[Problem]:
    """What keeps ``service`` from being started on its machines. ``ranks``: it on those that are
    connected already.
    """
    found = check(service, reached=[rank.deployment for rank in ranks])
    return [
        Problem(one.title, None, hint_of(one)) for one in found if one.severity is Severity.ERROR
    ]
