"""Checks on services, the machines that share one, and what is mounted.

What vLLM needs on several machines is in its released sources (0.14.0:
vllm/engine/arg_utils.py:1470, vllm/config/parallel.py:600).
"""

from __future__ import annotations

import re

from envgen.logpattern import LogPattern
from envgen.profile.bind import Path_
from envgen.profile.bound import BoundProfile
from envgen.profile.caches import HUGGINGFACE
from envgen.profile.flags import RANKS, SHORT, VARIABLE, plain_name
from envgen.profile.model import GpuMode
from envgen.profile.names import NAMES
from envgen.profile.service import Cluster, Service
from envgen.profile.shape import HUB_REPO, matches
from envgen.text import shorten

ENDLESS = ("always", "unless-stopped")  # Docker's restart policies without a limit
_SHELLS = ("sh", "bash", "dash", "zsh")


def check(report: BoundProfile) -> None:
    """Check the services, their machines and their mounts."""
    for name, service in report.profile.services.items():
        section = report.at("services", name)
        if name == "all":
            section.problem("", f"{name!r} is a reserved name", "choose another")
        if not service.command:
            section.problem(
                "command", "is empty", "write the program and its arguments: [vllm, serve, MODEL]"
            )
        elif service.command[0].startswith("-") or matches(HUB_REPO, service.command[0]):
            named = [word for word in service.command if not word.startswith("-")]
            section.problem(
                ("command", 0),
                "is no program, and envgen replaces the image's entry point",
                f"write command: [vllm, serve, {(named or ['MODEL'])[0]}], and its flags in `args`",
            )
        _container(section, service)
        _flags(section, service)
        _ports(section, service)
        _log_patterns(section, service)
        _model(section, service)
        if service.cluster is not None:
            _cluster(section, service, service.cluster)
    _machines(report)
    _mounts(report)


def _container(section: BoundProfile, service: Service) -> None:
    """Check for settings that exclude each other."""
    if service.network is not None and service.ports:
        hint = "remove one of them: the server's port is the machine's"
        section.problem("ports", f"has no effect with network: {service.network}", hint)
    if service.gpu and section.profile.gpu is GpuMode.NONE:
        section.problem("gpu", "the profile has gpu: none", "remove one of them")
    if service.restart in ENDLESS and section.profile.unguarded:
        message = "a server that fills the memory that GPU and machine share would freeze the machine again and again"
        section.problem(
            "restart",
            message,
            "leave memory.floor out, so that the guard ends it; or write on-failure:3",
        )


def _flags(section: BoundProfile, service: Service) -> None:
    """Check that each flag is there once, and arrives as it is written."""
    written: dict[str, str] = {}
    for flag, value in service.args.items():
        first = written.setdefault(plain_name(flag).removeprefix("no-"), flag)
        if first != flag:
            section.problem(("args", flag), f"is the same flag as {first}", "keep one of them")
        level = re.fullmatch(r"O([0-3])", flag)
        if service.is_vllm_server and (flag in SHORT or level):
            long = f"{SHORT['O']}: {level[1]}" if level else SHORT[flag]
            section.problem(("args", flag), "is a short flag of vLLM's", f"write {long}")
        if flag.startswith("no-") and value is False:
            section.problem(
                ("args", flag), "is a flag that turns off, with false", f"write {flag[3:]}: true"
            )
    words: list[tuple[Path_, object]] = []
    for flag, value in service.args.items():
        if isinstance(value, tuple):
            words += [(("args", flag, number), word) for number, word in enumerate(value)]
        else:
            words.append((("args", flag), value))
    program = service.command[0] if service.command else ""
    if program.rpartition("/")[2] not in _SHELLS:
        words += [(("command", number), word) for number, word in enumerate(service.command)]
    for path, word in words:
        variable = VARIABLE.search(word) if isinstance(word, str) else None
        if variable:
            message = f"the program would get {variable[0]} as it is written: envgen fills in no variables"
            section.problem(
                path, message, "write the value; for one machine in envgen.local.yaml, or --set"
            )


def _model(section: BoundProfile, service: Service) -> None:
    """Check that the command loads the service's `model`."""
    if service.model is None:
        return
    if HUGGINGFACE.name not in section.profile.caches:
        hint = f"add `{HUGGINGFACE.line('~/.cache/huggingface')}`"
        section.problem("model", "the profile has no cache `huggingface` for it", hint, whole=True)
    if not service.is_vllm:
        return
    loaded = service.command[2] if len(service.command) > 2 else service.args.get("model")
    if loaded != service.model.repo:
        hint = "write command: [vllm, serve], which loads this model"
        section.problem("model.repo", f"the command loads {loaded or 'no model'}", hint)
    revision = service.args.get("revision")
    if revision is not None and revision != service.model.revision:
        section.problem(
            "model.revision", f"args.revision is {revision}", "write it in one of them only"
        )


def _ports(section: BoundProfile, service: Service) -> None:
    """Check that all keys with the server's port agree; the program's own port is right."""
    published = [port.container for port in service.ports]
    asked = service.ready.port if service.ready is not None else None
    if (
        asked is not None
        and asked not in published
        and service.network is None
        and not section.is_broken("ports")
    ):
        hint = f'add "127.0.0.1:{asked}:{asked}" to its ports'
        section.problem("ready.port", f"port {asked} of the container is not published", hint)
    key, listens = service.own_port or ("ready.port", asked)
    if listens is None:
        return
    but = f"but the server listens on {listens} ({key})"
    if published and listens not in published and key != "ready.port":
        which = ", ".join(map(str, published))
        section.problem(
            "ports", f"publishes port {which} of the container, {but}", "write the same port in all"
        )
    if asked is not None and asked != listens:
        section.problem("ready.port", f"asks port {asked}, {but}", "write the same port in all")


def _log_patterns(section: BoundProfile, service: Service) -> None:
    """Check that the patterns of `ready` are regular expressions, and do not match every line."""
    ready = service.ready
    if ready is None:
        return
    names = service.names if service.is_vllm_server and service.flag("lora-modules") is None else ()
    if (
        ready.model is not None
        and names
        and ready.model not in names
        and service.flag("config") is None
    ):
        hint = (
            f"write `ready: {{model: {names[0]}}}`, or `args: {{served-model-name: {ready.model}}}`"
        )
        section.problem(
            "ready.model", f"the server answers to {', '.join(names)}, not to {ready.model}", hint
        )
    if ready.model is not None and ready.port is None:
        section.problem("ready", "model without port", "add the container's HTTP port", whole=True)
    if (
        ready.expect_text is not None
        and service.http_port is None
        and not section.is_broken("ready.port")
    ):
        hint = "add ready.port, the port of the container that answers HTTP"
        section.problem("ready.expect_text", "no prompt is completed without ready.port", hint)
    for key, patterns in (("expect", ready.expect), ("forbid", ready.forbid)):
        for name, pattern in patterns.items():
            try:
                if LogPattern(pattern).found_in(""):
                    hint = "write a part of the line"
                    section.problem(("ready", key, name), f"{pattern!r} matches every line", hint)
            except ValueError as error:
                message = f"{shorten(pattern, 80)!r} is not a regular expression: {error}"
                hint = "a backslash before ( [ . * + ? makes it literal; look-around and back-references don't exist"
                section.problem(("ready", key, name), message, hint)


# --- several machines
# -----------------------------------------------------------------------------------------------


def _machines(report: BoundProfile) -> None:
    addresses: dict[object, str] = {}
    contexts: dict[object, str] = {}
    for name, node in report.profile.nodes.items():
        section = report.at("nodes", name)
        section.once(addresses, node.address, name, "address", "the address of {}")
        hint = "`docker context create` makes one for the other machine; see docs/two-machines.md"
        section.once(contexts, node.context, name, "context", "the context of {}", hint)
        for cache, path in node.caches.items():
            if cache not in report.profile.caches:
                section.problem(("caches", cache), f"cache {cache} does not exist")
            elif not path.is_machine_specific:
                hint = "write the whole path on that machine, such as /raid/hf"
                section.problem(("caches", cache), f"{path} is a path on this machine", hint)


def _cluster(section: BoundProfile, service: Service, cluster: Cluster) -> None:
    machines = section.profile.nodes
    count = len(cluster.nodes)
    if count < 2:
        section.problem(
            "cluster.nodes", "needs two machines or more", "leave `cluster` out for one machine"
        )
    for number, name in enumerate(cluster.nodes):
        if name in cluster.nodes[:number]:
            section.problem(
                ("cluster", "nodes", number), f"{name} is there twice", "name each machine once"
            )
        elif machines and name not in machines:
            hint = f"`nodes` has {', '.join(machines)}"
            section.problem(("cluster", "nodes", number), f"machine {name} does not exist", hint)
    if not service.is_vllm:
        hint = "write command: [vllm, serve, MODEL]"
        section.problem("command", "only `vllm serve` runs on several machines", hint)
    for flag in service.args:
        if flag.replace("_", "-") in NAMES["cluster_flags"]:
            section.problem(("args", flag), "is set by `cluster`", "leave it out")
        elif flag.replace("_", "-").startswith("data-parallel"):
            hint = "use tensor-parallel-size or pipeline-parallel-size"
            section.problem(("args", flag), "data parallel is not supported with `cluster`", hint)
    ranks = service.ranks
    if count > 1 and (0 < ranks < count or ranks % count):  # vLLM requires the same number on each
        where: Path_ = next(
            (("args", flag) for flag in RANKS if flag in service.args), ("cluster",)
        )
        hint = f"write args: {{tensor-parallel-size: {count}}}"
        section.problem(
            where, f"{ranks} rank{'s' * (ranks != 1)} cannot be shared by {count} machines", hint
        )
    if service.restart != "no":
        hint = "write restart: no; a systemd unit with `envgen up --stay` restarts all of them"
        section.problem("restart", "a rank that restarts alone never rejoins the others", hint)
    for number, port in enumerate(service.ports):
        if port.host != port.container:
            hint = f'write "{port.container}:{port.container}", or change args.port'
            section.problem(
                ("ports", number),
                "machines in a cluster use the host's network, which maps no ports",
                hint,
            )
    for variable in NAMES["cluster_variables"]:
        if variable in service.env:
            hint = "leave it out: envgen sets it on each machine from `nodes`"
            section.problem(("env", variable), "is set by `cluster`", hint)
    _cluster_paths(section, service, cluster)


def _cluster_paths(section: BoundProfile, service: Service, cluster: Cluster) -> None:
    """A path relative to the project only exists on this machine: another would mount an empty
    folder.
    """
    machines = section.profile.nodes
    others = [
        name
        for name in dict.fromkeys(cluster.nodes)
        if name in machines and machines[name].context != "default"
    ]
    for node in others:
        for name, cache in section.profile.caches.items():
            if (
                cache.host is not None
                and cache.host.is_relative
                and name not in machines[node].caches
            ):
                hint = f"write the whole path on that machine: caches: {{{name}: /raid/{name}}}"
                message = f"{cache.host} of the cache {name} is a folder of this machine"
                section.top.problem(("nodes", node), message, hint)
    for name, mount in service.mounts.items():
        if mount.host.is_relative and others:
            hint = "write a whole path that all machines have, in envgen.local.yaml"
            message = f"{mount.host} is a folder of this machine, not of {', '.join(others)}"
            section.problem(("mounts", name), message, hint)


# --- mounts
# ---------------------------------------------------------------------------------------------------------


def _mounts(report: BoundProfile) -> None:
    """Check that a place in a container has one thing: Docker mounts no two."""
    profile = report.profile
    taken: dict[object, str] = {
        source.mount: f"the mount of the source {name}" for name, source in report.sources("mount")
    }
    for name, cache in profile.caches.items():
        section = report.at("caches", name)
        section.once(taken, cache.path, f"the path of the cache {name}", "path", "{}")
        if cache.host is not None:
            section.host_path("host", cache.host)
    for name, service in profile.services.items():
        own = dict(taken)
        for key, mount in service.mounts.items():
            section = report.at("services", name, "mounts", key)
            section.host_path("host", mount.host)
            section.once(own, mount.path, f"the path of the mount {key}", "path", "{}")
