"""Compare the answers of the machines of a service: a finding for each thing that must hold.

vLLM compares nothing between its ranks: other weights on the second machine give wrong text and a
healthy server.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from envgen.binding import JsonDict
from envgen.doctor.model import CMA, HANDOVER_CURE, Finding, Remedy, Section, Severity
from envgen.engine.client import Engine
from envgen.engine.endpoint import SshAddress
from envgen.engine.values import MISSHAPEN, Container, ContainerMount, Image
from envgen.errors import Problem
from envgen.profile.model import GpuMode, Machine, Profile
from envgen.profile.service import Cluster, Service
from envgen.text import shell_line, size

COPY = "a copy of the first machine's: docs/two-machines.md"
DISK = 1 << 30  # bytes: logs, and what is compiled at the start
UNLOCKED = "write LimitMEMLOCK=infinity for docker.service on that machine (rootless Docker: raise its user's limit)"
RANK = "dev.envgen.cluster"  # the label of a rank


def finding(
    severity: Severity,
    who: Sequence[str],
    message: str,
    expected: str = "",
    fix: str | Remedy = "",
) -> Finding:
    """A finding about the machines ``who``. ``fix``: a command, or another remedy."""
    case = {Severity.ERROR: "differ", Severity.WARNING: "doubt"}.get(severity, "")
    if severity is Severity.OK:
        title = f"{who[0]}: {message}" if len(who) == 1 else message
        expected = ""
    else:
        title = f"{'+'.join(who)}: {message}" if who else message
        expected = expected or "the same on all machines"
    remedy = Remedy(fix) if isinstance(fix, str) else fix
    return Finding(
        severity,
        title,
        "",
        expected,
        remedy if remedy.text else None,
        {"case": case},
        "nodes.fit",
        Section.NODES,
    )


@dataclass
class NodeFacts:
    """A machine of a service, and its answer. ``trouble``: why there is none, in the words of the
    engine or ssh.
    """

    name: str
    machine: Machine
    rank: int
    trouble: str = ""
    hint: str = ""
    engine: Engine | None = None
    version: str = ""
    arch: str = ""
    image_name: str = ""
    image: Image | None = None
    stale: tuple[Problem, ...] = ()  # why the head's image is out of date
    facts: JsonDict = field(default_factory=dict)
    # folders of the service that this machine lacks
    absent: list[ContainerMount] = field(default_factory=list)
    gpus: tuple[Container, ...] = ()  # other containers with the GPU
    refused: str = ""  # why the service's limits can't be set there
    runs: bool = False  # its part of the service, which then holds the ports and the memory
    model: str = ""  # the folder of the model on the machine
    head: NodeFacts | None = None  # the first machine, for all others

    def copy_of_image(self) -> str:
        """The command that copies an image from the head."""
        head = _docker(self.head.machine) if self.head else "docker"
        return f"{head} save {self.image_name} | {_docker(self.machine)} load"

    def copy_of_model(self) -> str:
        """The command, typed on the head, that copies the model from there; "" where ssh does not
        lead to it.
        """
        source = self.head.model if self.head else ""
        host = self.engine.endpoint.host if self.engine else ""
        if not source or not self.model or not host.startswith("ssh://"):
            return ""
        address = SshAddress.parse(host)
        port = ["-e", f"ssh -p {address.port}"] if address.port else []
        login = f"{address.user}@{address.host}" if address.user else address.host
        return shell_line(
            ["rsync", "-a", "--checksum", "--mkpath", *port, f"{source}/", f"{login}:{self.model}/"]
        )

    @property
    def card(self) -> JsonDict:
        """Its network interface; empty where there is none."""
        return dict(self.facts["interfaces"].get(self.machine.interface) or {})

    def rail(self, place: int) -> str:
        """The networks of its RDMA device at this place."""
        device = self.machine.rdma[place]
        port = self.facts["rdma"].get(device) or {"gids": ()}
        networks = {network for _, _, network in port["gids"]}
        return ", ".join(sorted(networks))

    def ok(self, message: str) -> Finding:
        return finding(Severity.OK, (self.name,), message)

    def warn(self, message: str, expected: str = "", fix: str | Remedy = "") -> Finding:
        return finding(Severity.WARNING, (self.name,), message, expected, fix)

    def fail(self, message: str, expected: str = "", fix: str | Remedy = "") -> Finding:
        return finding(Severity.ERROR, (self.name,), message, expected, fix)


def _docker(machine: Machine) -> str:
    if machine.context == "default":
        return "docker"
    return f"docker --context {shlex.quote(machine.context)}"


def completed(result: Finding, profile: Profile, service: str) -> Finding:
    """The finding, with the command that checks again where it has no remedy."""
    if result.severity is Severity.OK:
        return result
    remedy = result.remedy or Remedy(f"envgen nodes check {service}")
    if re.match(r"(DOCKER_CONTEXT=\S+ )?envgen ", remedy.text):
        remedy = replace(remedy, text=f"{remedy.text} {profile.chosen}")
    return replace(result, remedy=remedy)


def hint_of(result: Finding) -> str:
    """What is expected, and what to type."""
    assert result.remedy is not None
    return f"{result.expected}: {'write ' * result.remedy.is_line}{result.remedy.text}"


def about(node: NodeFacts, profile: Profile, service: Service, cluster: Cluster) -> list[Finding]:
    """What each machine must have."""
    if node.trouble and not node.version:
        return [
            node.fail(
                node.trouble,
                node.hint or "it answers",
                f"docker --context {node.machine.context} version",
            )
        ]
    findings = [node.ok(f"Docker {node.version}, {node.arch}")]
    findings += [node.fail(stale.message, stale.hint) for stale in node.stale]
    if node.image is None:
        there = (
            f"DOCKER_CONTEXT={node.machine.context} " if node.machine.context != "default" else ""
        )
        fix = node.copy_of_image() if node.rank else f"{there}envgen build"
        lacking = node.fail(
            f"the image {profile.image_name} is not there", "the image of the profile", fix
        )
        return findings if node.stale else [*findings, lacking]
    if node.trouble:
        return [*findings, node.fail(node.trouble, node.hint)]
    try:
        findings += [_network(node), *_rdma(node), *_room(node, profile, service, cluster)]
    except MISSHAPEN as error:
        findings.append(node.fail(f"its answer cannot be read: {type(error).__name__}"))
    return findings


def _network(node: NodeFacts) -> Finding:
    machine = node.machine
    there = node.facts["interfaces"]
    card = there.get(machine.interface)
    if card is None:
        return node.fail(
            f"network interface {machine.interface} does not exist",
            f"there are: {', '.join(there)}",
        )
    if card["address"] != machine.address:
        other = next(
            (name for name, found in there.items() if found["address"] == machine.address),
            "no interface",
        )
        hint = f"{other} has it: set the address, or write the right one into `nodes`"
        return node.fail(
            f"{machine.interface} has the address {card['address'] or '(none)'}, not {machine.address}",
            hint,
        )
    if not card["up"]:
        return node.fail(f"{machine.interface} is down", "is the cable plugged in at both ends?")
    speed = f", {card['mbit']} Mbit/s" if card["mbit"] not in ("", "-1") else ""
    return node.ok(f"{machine.interface} has {machine.address}, MTU {card['mtu']}{speed}")


def _rdma(node: NodeFacts) -> Iterator[Finding]:
    """The RDMA devices, their addresses, and the memory that a container may lock for them."""
    machine = node.machine
    facts = node.facts
    for device in machine.rdma:
        port = facts["rdma"].get(device)
        if port is None:
            yield node.fail(
                f"RDMA device {device} does not exist",
                f"there are: {', '.join(facts['rdma']) or 'none'}",
            )
        elif "ACTIVE" not in port["state"]:
            yield node.fail(f"{device} is {port['state'] or 'in no state'}", "check the cable")
        elif not port["gids"]:
            yield node.fail(
                f"{device} has no IPv4 address for RoCE v2", "give its interface an address"
            )
        else:
            gids = ", ".join(f"GID {number} is {address}" for number, address, _ in port["gids"])
            yield node.ok(f"{device} is active, {port['rate']}, {gids}")
    held = facts["handover"] if re.match(r"([7-9]|\d\d)\.", facts["kernel"]) else 0
    if machine.rdma and held > CMA:
        message = f"Kexec HandOver of kernel {facts['kernel']} holds {size(held)} that RDMA can't pin: NCCL ends with ENOMEM"
        yield node.fail(message, "kho=off on the kernel's command line", HANDOVER_CURE)
    if node.refused:
        yield node.fail(
            f"Docker may not set the service's limits there (setrlimit{node.refused})", UNLOCKED
        )
    elif machine.rdma and facts["memlock"] != -1:
        message = f"a container may lock {size(facts['memlock'])} of memory there, and RDMA locks all that it sends"
        yield node.fail(message, UNLOCKED)
    unused = [
        device
        for device, port in facts["rdma"].items()
        if "ACTIVE" in port["state"] and port["gids"]
    ]
    if unused and not machine.rdma:
        message = f"{', '.join(unused)} can do RDMA, and `rdma` names no device: NCCL uses TCP"
        line = f"nodes: {{{node.name}: {{rdma: [{', '.join(unused)}]}}}}"
        expected = "`rdma` names them, in the same order on all machines"
        yield node.warn(message, expected, Remedy(line, is_line=True))


def _room(
    node: NodeFacts, profile: Profile, service: Service, cluster: Cluster
) -> Iterator[Finding]:
    """Ports, memory, disk, GPUs, folders and the model."""
    facts = node.facts
    for port in facts["taken"]:
        what = "cluster.port" if port == cluster.port else "the service's port"
        yield node.fail(
            f"port {port} is taken ({what})",
            "a free port, on that machine",
            f"ss -tlnp 'sport = :{port}'",
        )
    need = service.needs_memory.bytes if service.needs_memory else 0
    if node.runs:
        yield node.ok("the service runs: its ports and its memory are its own")
    elif facts["memory_free"] < need:
        message = (
            f"{size(facts['memory_free'])} of memory are free, and needs_memory is {size(need)}"
        )
        yield node.fail(message, "stop what uses the memory of that machine")
    elif need:
        yield node.ok(f"{size(facts['memory_free'])} of memory are free")
    if node.gpus and profile.gpu is not GpuMode.NONE:
        others = ", ".join(it.name for it in node.gpus)
        judged = node.fail if any(RANK in it.labels for it in node.gpus) else node.warn
        fix = f"docker --context {node.machine.context} stop {node.gpus[0].name}"
        yield judged(
            f"other containers have the GPU, and may hold its memory: {others}",
            "the GPU is free",
            fix,
        )
    if facts["disk_free"] < DISK:
        fix = f"docker --context {node.machine.context} system df"
        yield node.fail(f"{size(facts['disk_free'])} are free on Docker's disk", "room there", fix)
    if 0 < facts["gpus"] < (ranks := service.ranks // len(cluster.nodes)):
        message = f"{ranks} ranks are to run here, each with a GPU; there are {facts['gpus']}"
        line = f"args: {{tensor-parallel-size: {len(cluster.nodes)}}}"
        yield node.fail(message, "a GPU for each rank", Remedy(line, is_line=True))
    for mount in node.absent:
        message = f"{mount.source}, which is mounted at {mount.target}, does not exist"
        yield node.fail(message, "the folder that the profile mounts")
    model = facts.get("model")
    if model is not None and not dict(model["files"]):
        fix = node.copy_of_model() if node.rank else "envgen model pull"
        yield node.fail(
            "the model is not there", COPY if node.rank else "the weights of the service", fix
        )


def between(nodes: Sequence[NodeFacts], service: Service) -> list[Finding]:
    """What must be the same on all machines. An answer that can't be read is a finding, too."""
    if len(nodes) < 2:
        return []
    who = tuple(node.name for node in nodes)
    try:
        return _compared(nodes, who, service)
    except MISSHAPEN as error:
        return [
            finding(
                Severity.ERROR, who, f"a machine's answer cannot be read: {type(error).__name__}"
            )
        ]


def _compared(nodes: Sequence[NodeFacts], who: tuple[str, ...], service: Service) -> list[Finding]:
    same = partial(_same, nodes)
    findings = [
        _same_image(nodes),
        same("the machine's architecture", lambda node: node.arch),
        same("the GPU's driver", lambda node: node.facts["driver"]),
        same("the kernel", lambda node: node.facts["kernel"]),
        same(
            "the interface's MTU",
            lambda node: node.card.get("mtu"),
            "set the same MTU at both ends",
        ),
        same(
            "the number of RDMA devices",
            lambda node: len(node.machine.rdma),
            "NCCL pairs them by position",
        ),
    ]
    for place in range(min(len(node.machine.rdma) for node in nodes)):
        if all(node.rail(place) for node in nodes):
            hint = "NCCL pairs them by position: name them in the same order"
            findings.append(
                same(
                    f"the network of RDMA device {place + 1}",
                    partial(NodeFacts.rail, place=place),
                    hint,
                )
            )
    if all(node.facts.get("model") for node in nodes):
        findings += _same_model(nodes, who)
    elif service.model is not None or len(service.command) > 2:
        hint = "the weights must be the same on all machines: other weights give wrong text, and no error"
        findings.append(
            finding(
                Severity.WARNING,
                who,
                "the weights are not compared: no cache of the profile has them",
                hint,
            )
        )
    return findings


def _same(
    nodes: Sequence[NodeFacts],
    what: str,
    of: Callable[[NodeFacts], object],
    fix: str = "",
    *,
    shown: bool = True,
) -> Finding:
    values = {node.name: str(of(node)) for node in nodes}
    who = tuple(values)
    if len(set(values.values())) == 1:
        message = f"{what} is the same"
        if shown:
            message += f": {values[who[0]]}"
        return finding(Severity.OK, who, message)
    message = f"{what} differs"
    if shown:
        listed = "; ".join(f"{name}: {it}" for name, it in values.items())
        message += f": {listed}"
    return finding(Severity.ERROR, who, message, fix=fix)


def _same_image(nodes: Sequence[NodeFacts]) -> Finding:
    def content(node: NodeFacts) -> str | None:
        return node.image.content if node.image else None

    fix = ""
    first = content(nodes[0])
    others = [node for node in nodes if content(node) != first]
    if others:
        fix = others[0].copy_of_image()
    return _same(nodes, "the image", content, fix=fix, shown=False)


def _same_model(nodes: Sequence[NodeFacts], who: tuple[str, ...]) -> list[Finding]:
    head = nodes[0].facts["model"]["files"]
    findings = []
    for node in nodes[1:]:
        theirs = node.facts["model"]["files"]
        differing = sorted(name for name in {*head, *theirs} if head.get(name) != theirs.get(name))
        if differing:
            more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
            message = f"the model differs in {', '.join(differing[:3])}{more}"
            pair = (nodes[0].name, node.name)
            findings.append(finding(Severity.ERROR, pair, message, COPY, node.copy_of_model()))
    if not findings:
        message = f"the model is the same: {len(head)} files, large ones by samples"
        findings.append(finding(Severity.OK, who, message))
    return findings
