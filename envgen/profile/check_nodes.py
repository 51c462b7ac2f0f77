"""Checks on several machines: the machines themselves, and the services that they share.

What vLLM needs there is in its released sources (0.14.0: vllm/engine/arg_utils.py:1470, vllm/config/parallel.py:600).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from envgen.profile.model import Cluster, Service
from envgen.profile.report import Report

# What envgen says to each rank; vLLM has all of them from 0.11.2 on.
OWN_FLAGS = ("nnodes", "node-rank", "master-addr", "master-port", "headless", "distributed-executor-backend")
PER_NODE = ("VLLM_HOST_IP", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA")
SIZES = ("tensor-parallel-size", "pipeline-parallel-size")


def check(report: Report) -> None:
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
