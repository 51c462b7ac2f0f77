"""Checks on services, the machines that share one, and what they mount.

What vLLM needs on several machines is in its released sources (0.14.0: vllm/engine/arg_utils.py:1470,
vllm/config/parallel.py:600).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from envgen.logpattern import LogPattern
from envgen.profile.bind import Report
from envgen.profile.model import Cluster, GpuMode, Service
from envgen.profile.values import ContainerPath
from envgen.text import shorten

RESERVED_SERVICES = frozenset(("all",))


def check(report: Report) -> None:
    """Note what is wrong with the services and with what they mount."""
    for name, service in report.profile.services.items():
        path = ("services", name)
        if name in RESERVED_SERVICES:
            report.problem(path, f"{name!r} is a reserved name", "choose another", at_key=True)
        if not service.command:
            report.problem((*path, "command"), "is empty", "write the program and its words: [vllm, serve, MODEL]")
        _ports(report, path, service)
        _container(report, path, service)
        _mounts(report, name, service)
        _health(report, path, service)
        _same_port(report, path, service)
        _patterns(report, path, service)
        _args(report, path, service)
        _model(report, path, service)
    _caches(report)
    _targets(report)
    _files(report)
    _nodes(report)


def _model(report: Report, path: tuple[str, ...], service: Service) -> None:
    """What is fetched and checked must be what the server loads."""
    if service.model is None:
        return
    if "huggingface" not in report.profile.caches:
        hint = "add `caches: {huggingface: {path: /root/.cache/huggingface, host: ~/.cache/huggingface}}`"
        report.problem((*path, "model"), "there is no cache `huggingface` to keep it in", hint, at_key=True, whole=True)
    if not service.is_vllm:
        return
    loaded = service.command[2] if len(service.command) > 2 else service.args.get("model")
    if loaded != service.model.repo:
        hint = f"write command: [vllm, serve, {service.model.repo}]"
        report.problem((*path, "model", "repo"), f"the command loads {loaded or 'no model'}", hint)
    revision = service.args.get("revision")
    if revision is not None and revision != service.model.revision:
        report.problem((*path, "model", "revision"), f"args.revision is {revision}", "write it in one of the two only")


def _ports(report: Report, path: tuple[str, ...], service: Service) -> None:
    for number, port in enumerate(service.ports):
        for earlier in service.ports[:number]:
            anywhere = "" in (port.address, earlier.address) or "0.0.0.0" in (port.address, earlier.address)
            if port.host == earlier.host and (anywhere or port.address == earlier.address):
                hint = "publish it once"
                report.problem((*path, "ports", str(number)), f"the host's port {port.host} is published twice", hint)
                break
    ready = service.ready
    if ready is None:
        return
    published = [port.container for port in service.ports]
    if ready.port is not None and ready.port not in published and service.network is None:
        hint = f'add "127.0.0.1:{ready.port}:{ready.port}" to its ports'
        if not report.is_broken(".".join((*path, "ports"))):
            report.problem((*path, "ready", "port"), f"port {ready.port} of the container is not published", hint)
    if ready.model is not None and ready.port is None:
        hint = "add the container's port that answers HTTP"
        report.problem((*path, "ready"), "model without port", hint, at_key=True, whole=True)


def _container(report: Report, path: tuple[str, ...], service: Service) -> None:
    """What can't go together in one container, or in two."""
    profile = report.profile
    if service.network is not None and service.ports:
        hint = "remove one of them: the server's own port is the machine's"
        report.problem((*path, "ports"), f"has no effect with network: {service.network}", hint, at_key=True)
    if service.shm_size is not None and profile.ipc == "host":
        message = "has no effect with ipc: host, which shares the machine's /dev/shm"
        report.problem((*path, "shm_size"), message, "remove one of them")
    if service.gpu and profile.gpu is GpuMode.NONE:
        report.problem((*path, "gpu"), "the profile has gpu: none", "remove one of them", at_key=True)
    report.repeated((*path, "gpu"), service.gpu or ())
    if service.container_name is not None:
        same = [name for name, one in profile.services.items() if one.container_name == service.container_name]
        if same[0] != path[1]:
            message = f"{service.container_name} is already the name of {same[0]}'s container"
            report.problem((*path, "container_name"), message, "choose another")


def _mounts(report: Report, name: str, service: Service) -> None:
    """Each mount of its own place, and none over what the profile mounts."""
    taken = [(f"the source {key}", source.mount) for key, source in report.sources("mount")]
    taken += [(f"the cache {key}", cache.path) for key, cache in report.profile.caches.items()]
    if report.profile.tiktoken.encodings:
        taken.append(("the vocabulary files", report.profile.tiktoken.directory))
    taken.append(("CUDA (cuda.home)", report.profile.cuda.home))
    for key, mount in service.mounts.items():
        path = ("services", name, "mounts", key)
        report.host_path((*path, "host"), mount.host)
        for what, place in taken:
            if mount.path == place or mount.path.is_parent_of(place):
                report.problem((*path, "path"), f"{mount.path} would hide {what} at {place}", "name another folder")
        taken.append((f"the mount {key}", mount.path))


def _same_port(report: Report, path: tuple[str, ...], service: Service) -> None:
    """A server has one port, and up to four keys name it: what the program gets decides."""
    told = _told_port(service)
    health, ready = service.health, service.ready
    if told is None:
        if ready is None or ready.port is None:
            return
        told = "ready.port", ready.port
    key, port = told
    wrong: list[tuple[tuple[str, ...], str]] = []
    published = [mapping.container for mapping in service.ports]
    # Where the port is ready.port's own, _ports tells.
    if published and port not in published and key != "ready.port":
        wrong.append((("ports",), f"publishes port {', '.join(map(str, published))} of the container"))
    if health is not None and health.http is not None and health.port != port:
        wrong.append((("health", "port"), f"asks port {health.port}"))
    if ready is not None and ready.port is not None and ready.port != port:
        wrong.append((("ready", "port"), f"asks port {ready.port}"))
    for where, what in wrong:
        report.problem((*path, *where), f"{what}, but the server listens on {port} ({key})", "write one port in all")


def _told_port(service: Service) -> tuple[str, int] | None:
    """Where the program's port is written, and which it is."""
    value = service.args.get("port")
    if value is not None:
        return ("args.port", int(value)) if isinstance(value, str) and _is_port(value) else None
    words = list(service.command)
    for number, word in enumerate(words):
        flag, has_value, value = word.partition("=")
        if flag == "--port":
            value = value if has_value else "".join(words[number + 1 : number + 2])
            return ("command", int(value)) if _is_port(value) else None
    return ("vLLM's default", 8000) if words[:2] == ["vllm", "serve"] else None


def _is_port(text: str) -> bool:
    return re.fullmatch(r"[1-9][0-9]{0,4}", text) is not None


def _health(report: Report, path: tuple[str, ...], service: Service) -> None:
    health = service.health
    if health is None:
        return
    path = (*path, "health")
    if health.http is not None and health.command:
        report.problem(path, "names both http and command", "keep one of them", at_key=True, whole=True)
    elif health.http is None and not health.command:
        report.problem(path, "names neither http nor command", "write http: /health", at_key=True, whole=True)


def _patterns(report: Report, path: tuple[str, ...], service: Service) -> None:
    """What `ready` looks for in the log must be regular expressions that a line can fail to match."""
    if service.ready is None or not (service.ready.expect or service.ready.forbid):
        return
    for key, patterns in (("expect", service.ready.expect), ("forbid", service.ready.forbid)):
        for name, pattern in patterns.items():
            try:
                matches_nothing = LogPattern(pattern).found_in("")
            except ValueError as error:
                message = f"{shorten(pattern, 80)!r} is not a regular expression: {error}"
                hint = "a backslash before ( [ . * + ? takes it as it is; look-around and back-references don't exist"
                report.problem((*path, "ready", key, name), message, hint)
                continue
            if matches_nothing:
                message = f"{pattern!r} matches every line"
                report.problem((*path, "ready", key, name), message, "write a part of the line that is meant")


def _args(report: Report, path: tuple[str, ...], service: Service) -> None:
    seen: dict[str, str] = {}
    for flag in service.args:
        first = seen.setdefault(flag.replace("_", "-"), flag)
        if first != flag:
            report.problem((*path, "args", flag), f"is the same flag as {first}", "keep one of them", at_key=True)


def _caches(report: Report) -> None:
    profile = report.profile
    caches = list(profile.caches.items())
    for position, (name, cache) in enumerate(caches):
        path = ("caches", name, "path")
        for other, earlier in caches[:position]:
            if cache.path == earlier.path:
                report.problem(path, f"{cache.path} is already the path of the cache {other}")
        for source_name, source in report.sources("mount"):
            if cache.path == source.mount or cache.path.is_parent_of(source.mount):
                report.problem(path, f"{cache.path} would hide the source {source_name} at {source.mount}")
            elif source.mount.is_parent_of(cache.path):
                report.problem(path, f"{cache.path} is inside the source {source_name} at {source.mount}")
        held = {"tiktoken.directory": profile.tiktoken.directory} if profile.tiktoken.encodings else {}
        for key, folder in {**held, "cuda.home": profile.cuda.home}.items():
            if (cache.path == folder or cache.path.is_parent_of(folder)) and not _system_part(cache.path):
                report.problem(path, f"{cache.path} would hide what the image holds at {folder} ({key})")
        if cache.host is not None:
            report.host_path(("caches", name, "host"), cache.host)


# Folders that the image lives on: mounted over, they would hide it. Below some, nothing may be mounted either.
_SYSTEM = frozenset(
    (
        "/", "/bin", "/boot", "/home", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/run", "/sbin", "/usr",
        "/usr/bin", "/usr/include", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec", "/usr/libx32",
        "/usr/local", "/usr/local/bin", "/usr/local/lib", "/usr/local/sbin", "/usr/sbin", "/usr/share", "/var",
        "/var/lib",
    )
)  # fmt: skip
_SYSTEM_TREES = ("/dev", "/etc", "/opt/envgen", "/proc", "/run/envgen", "/sys")


def _targets(report: Report) -> None:
    """What is mounted over the image: never one of the system's own folders."""
    profile = report.profile
    targets: list[tuple[tuple[str, ...], ContainerPath]] = []
    targets += [(("sources", name, "mount"), source.mount) for name, source in report.sources("mount")]
    targets += [(("caches", name, "path"), cache.path) for name, cache in profile.caches.items()]
    for name, service in profile.services.items():
        targets += [(("services", name, "mounts", key, "path"), one.path) for key, one in service.mounts.items()]
    if profile.tiktoken.encodings:
        targets.append((("tiktoken", "directory"), profile.tiktoken.directory))
    for path, target in targets:
        hidden = _system_part(target)
        if hidden:
            message = f"{hidden} belongs to the image's own system, which this would hide"
            report.problem(path, message, "name a separate folder, such as /workspace/NAME")


def _system_part(target: ContainerPath) -> str:
    """The folder of the system that ``target`` is, or is in; empty for any other."""
    tree = next((tree for tree in _SYSTEM_TREES if f"{target.path}/".startswith(f"{tree}/")), "")
    return tree or (target.path if target.path in _SYSTEM else "")


def _files(report: Report) -> None:
    profile = report.profile
    if profile.build.wheelhouse is not None:
        report.host_path(("build", "wheelhouse"), profile.build.wheelhouse)
    if profile.network.ca_certificates is not None:
        report.host_path(("network", "ca_certificates"), profile.network.ca_certificates)


# What envgen says to each rank; vLLM has all of them from 0.11.2 on.
OWN_FLAGS = ("nnodes", "node-rank", "master-addr", "master-port", "headless", "distributed-executor-backend")
PER_NODE = ("VLLM_HOST_IP", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA")
SIZES = ("tensor-parallel-size", "pipeline-parallel-size")


def _nodes(report: Report) -> None:
    """Note what is wrong with ``nodes``, and with the services that have ``cluster``."""
    _machines(report)
    for name, service in report.profile.services.items():
        if service.cluster is not None:
            _cluster(report, ("services", name), service, service.cluster)


def _machines(report: Report) -> None:
    addresses: dict[str, str] = {}
    contexts: dict[str, str] = {}
    for name, node in report.profile.nodes.items():
        path = ("nodes", name)
        if any(int(part) > 255 for part in node.address.split(".") if part.isdigit()):
            report.problem((*path, "address"), f"{node.address} is not an IPv4 address", "numbers go up to 255")
        if (first := addresses.setdefault(node.address, name)) != name:
            report.problem((*path, "address"), f"{node.address} is already the address of {first}")
        if (first := contexts.setdefault(node.context, name)) != name:
            hint = "`docker context create` makes one for the other machine; see docs/two-machines.md"
            report.problem((*path, "context"), f"{node.context} is already the context of {first}", hint)
        for cache in node.caches:
            if cache not in report.profile.caches:
                report.problem((*path, "caches", cache), f"there is no cache {cache}", at_key=True)
            elif not node.caches[cache].path.startswith("/"):
                hint = "write the whole path on that machine, such as /raid/hf"
                report.problem(
                    (*path, "caches", cache), f"{node.caches[cache]} would be looked up on this machine", hint
                )


def _cluster(report: Report, path: tuple[str, ...], service: Service, cluster: Cluster) -> None:
    here = (*path, "cluster")
    count = len(cluster.nodes)
    if count < 2:
        report.problem((*here, "nodes"), "needs two machines or more", "leave `cluster` out for one machine")
    for number, name in enumerate(cluster.nodes):
        if name in cluster.nodes[:number]:
            report.problem((*here, "nodes", str(number)), f"{name} is there twice", "name each machine once")
        elif report.profile.nodes and name not in report.profile.nodes:
            known = ", ".join(report.profile.nodes)
            report.problem((*here, "nodes", str(number)), f"there is no machine {name}", f"`nodes` has {known}")
    if not service.is_vllm:
        hint = "write command: [vllm, serve, MODEL]"
        report.problem((*path, "command"), "only `vllm serve` can be shared between machines", hint)
    for flag in service.args:
        if flag.replace("_", "-") in OWN_FLAGS:
            report.problem((*path, "args", flag), "is set by `cluster`", "leave it out", at_key=True)
        elif flag.replace("_", "-").startswith("data-parallel"):
            hint = "use tensor-parallel-size or pipeline-parallel-size"
            report.problem((*path, "args", flag), "data parallel is not supported with `cluster`", hint, at_key=True)
    _sizes(report, path, service, count)
    _folders(report, path, service, cluster)
    if service.restart != "no":
        hint = "write restart: no, and cluster.on_failure: restart:3; `envgen up --stay` then starts all of them again"
        report.problem((*path, "restart"), "a rank that is restarted alone never finds the others again", hint)
    for number, port in enumerate(service.ports):
        if port.auto or port.host != port.container:
            hint = f'write "{port.container}:{port.container}", or change args.port'
            report.problem(
                (*path, "ports", str(number)), "machines in a cluster use the host's network: no port is mapped", hint
            )
        elif port.container == cluster.port:
            report.problem(
                (*path, "ports", str(number)), f"{cluster.port} is the port where the ranks meet (cluster.port)"
            )
    for variable in PER_NODE:
        if variable in service.env:
            hint = "it differs between machines: envgen sets it from `nodes`"
            report.problem((*path, "env", variable), "is set by `cluster`", hint, at_key=True)


def _folders(report: Report, path: tuple[str, ...], service: Service, cluster: Cluster) -> None:
    """A path that starts from the project's folder is one of this machine: another would mount an empty folder."""
    machines = report.profile.nodes
    others = [name for name in dict.fromkeys(cluster.nodes) if name in machines and machines[name].context != "default"]
    for node in others:
        for name, cache in report.profile.caches.items():
            if cache.host is not None and cache.host.is_relative and name not in machines[node].caches:
                hint = f"write the whole path on that machine: caches: {{{name}: /raid/{name}}}"
                report.problem(("nodes", node), f"{cache.host} of the cache {name} is a folder of this machine", hint)
    for name, mount in service.mounts.items():
        if mount.host.is_relative and others:
            hint = "write a whole path that all machines have, in envgen.local.yaml"
            message = f"{mount.host} is a folder of this machine, not of {', '.join(others)}"
            report.problem((*path, "mounts", name), message, hint)


def _sizes(report: Report, path: tuple[str, ...], service: Service, count: int) -> None:
    """vLLM asserts that the ranks can be shared out evenly."""
    ranks = ranks_of(service.args)
    if count > 1 and (0 < ranks < count or ranks % count):
        hint = f"write args: {{tensor-parallel-size: {count}}}"
        where = next(((*path, "args", flag) for flag in SIZES if flag in service.args), (*path, "cluster"))
        report.problem(where, f"{ranks} rank{'s' * (ranks != 1)} cannot be shared by {count} machines", hint)


def ranks_of(args: Mapping[str, object]) -> int:
    """How many ranks a service's flags ask for; 0 where they can't be read."""
    sizes = [args.get(flag) or args.get(flag.replace("-", "_")) or "1" for flag in SIZES]
    return math.prod(int(size) if isinstance(size, str) and size.isdigit() else 0 for size in sizes)
