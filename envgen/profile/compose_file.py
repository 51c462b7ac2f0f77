"""A profile's own Compose file: Compose reads it. What is committed with the project may have no
secrets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from envgen.binding import JsonDict, JsonObject
from envgen.errors import Place, Problem, ProjectError
from envgen.profile.exposure import API_KEY
from envgen.profile.model import Profile
from envgen.profile.service import Service
from envgen.profile.tree import PROJECT, ValueText, file_text, label_of
from envgen.profile.values import PortMapping, own_path
from envgen.redact import secret_in

_NAME = re.compile(r"""["']?name["']?[ \t]*:""")


def own_file(profile: Profile, root: Path) -> Path | None:
    """The file; None without one. ProjectError where it is missing, outside of the project, or
    wrong.

    Only commands that use it ask: a container can be stopped whatever its state.
    """
    if profile.compose is None:
        return None
    path = root / own_path(profile.compose.path)
    if not path.is_file():
        problem = Problem(
            f"compose of profile {profile.name}: {path} does not exist",
            hint="create it, or correct `compose`",
        )
        raise ProjectError([problem])
    if not path.resolve().is_relative_to(root.resolve()):
        message = (
            f"compose of profile {profile.name}: {path} is a link that leaves the project folder"
        )
        raise ProjectError([Problem(message, hint="copy it here")])
    source = ValueText(label_of(path), PROJECT, file_text(path, label_of(path)))
    problems = []
    for number, line in enumerate(source.text.split("\n"), 1):
        if kind := secret_in(line):
            hint = "write `secrets: [NAME]` in the profile, and ${NAME} there"
            place = Place(source.label, number, 1)
            problems.append(Problem(f"looks like a secret ({kind})", place, hint))
        if _NAME.match(line):
            hint = "remove it; to rename the project: `name` in envgen.yaml"
            message = "`name` would make it another Compose project"
            problems.append(Problem(message, source.place(number, 1), hint))
    if problems:
        raise ProjectError(problems)
    return path


def effective(profile: Profile, described: JsonObject) -> Profile:
    """``profile`` with the ports, networks, commands and API keys that Compose ``described`` its
    services with.
    """
    services = {}
    for name, service in profile.services.items():
        services[name] = _effective(service, described.get(name) or {})
    return replace(profile, services=MappingProxyType(services))


def _effective(service: Service, described: JsonObject) -> Service:
    known: JsonDict = {
        "ports": tuple(_ports(described.get("ports") or ())),
        "network": "host" if described.get("network_mode") == "host" else None,
    }
    words = tuple(described.get("command") or ())
    # A server's begins with the program that guards it.
    if words and service.argv not in (words, words[1:]):
        known["command"] = words
        known["args"] = {}
    if API_KEY in (described.get("environment") or {}):
        known["env"] = {**service.env, API_KEY: ""}
    return replace(service, **known)


def _ports(described: Iterable[JsonObject]) -> Iterator[PortMapping]:
    for published in described:
        first, _, last = str(published.get("published") or "").partition("-")
        if not first.isdecimal():
            continue
        target = int(published["target"])
        address = str(published.get("host_ip") or "")
        for port in range(int(first), int(last or first) + 1):
            yield PortMapping(port, target, address)


def changes(rendered: JsonObject, merged: JsonObject) -> list[str]:
    """The keys of a service that the own file changes; values may be secret."""
    keys = sorted(rendered.keys() | merged.keys())
    return [key for key in keys if rendered.get(key) != merged.get(key)]
