"""Checks on services, ports, health, caches and files."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

from envgen.profile.check_sources import host_path
from envgen.profile.model import Service

if TYPE_CHECKING:
    from envgen.profile.checks import Report

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
        _health(report, path, service)
        _patterns(report, path, service)
        _args(report, path, service)
    _caches(report)
    _files(report)


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
    if ready.port is not None and ready.port not in published:
        hint = f'add "{ready.port}:{ready.port}" to its ports'
        if not report.is_broken(".".join((*path, "ports"))):
            report.problem((*path, "ready", "port"), f"port {ready.port} of the container is not published", hint)
    if ready.model is not None and ready.port is None:
        hint = "add the container's port that answers HTTP"
        report.problem((*path, "ready"), "model without port", hint, at_key=True, whole=True)


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
    """What `ready` looks for in the log must be regular expressions, and not be wanted and unwanted at once."""
    if service.ready is None:
        return
    for key, patterns in (("expect", service.ready.expect), ("forbid", service.ready.forbid)):
        for name, pattern in patterns.items():
            try:
                matches_nothing = re.compile(pattern).search("") is not None
            except re.error as error:
                message = f"{pattern!r} is not a regular expression: {error}"
                report.problem((*path, "ready", key, name), message, "a backslash before ( [ . * + ? takes it as it is")
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
                report.problem(path, f"{cache.path} lies inside the source {source_name} at {source.mount}")
        held = {"tiktoken.directory": profile.tiktoken.directory} if profile.tiktoken.encodings else {}
        for key, folder in {**held, "cuda.home": profile.cuda.home}.items():
            if cache.path == folder or cache.path.is_parent_of(folder):
                report.problem(path, f"{cache.path} would hide what the image holds at {folder} ({key})")
        if cache.host is not None:
            host_path(report, ("caches", name, "host"), cache.host)


def _files(report: Report) -> None:
    profile = report.profile
    for name, encoding in profile.tiktoken.encodings.items():
        if encoding.file is None:
            continue
        path = ("tiktoken", "encodings", name, "file")
        text = encoding.file.path
        leaves = posixpath.normpath(text).split("/")[0] == ".."
        if text.startswith(("/", "~")) or leaves:
            report.problem(path, f"{text!r} leaves the project folder, which is all that a build sees", "copy it here")
        elif (report.root / text).exists() and not (report.root / text).resolve().is_relative_to(report.root.resolve()):
            report.problem(path, f"{text!r} is a link that leaves the project folder", "copy it here")
    if profile.build.wheelhouse is not None:
        host_path(report, ("build", "wheelhouse"), profile.build.wheelhouse)
    if profile.network.ca_certificates is not None:
        host_path(report, ("network", "ca_certificates"), profile.network.ca_certificates)
