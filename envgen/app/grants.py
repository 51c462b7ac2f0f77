"""The parts of this machine that a service can use: printed before its first start, and again when they change."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from envgen import files
from envgen.deployment import Deployment
from envgen.files import state_dir
from envgen.profile.compose_file import all_files
from envgen.profile.model import Profile
from envgen.profile.values import own_path
from envgen.redact import redact
from envgen.text import shorten, visible

LIMIT = 1 << 20  # of the record
SHOWN = 100  # characters of one value of a Compose file


def granted(profile: Profile, service: str) -> Iterator[str]:
    """What the profile grants: folders of the host, devices, capabilities and namespaces, each in a few words."""
    own = profile.services[service]
    for source in profile.mounted_sources.values():
        if source.origin.checkout is not None:
            yield f"{source.origin.checkout} (read-write)"
    for mount in own.mounts.values():
        yield f"{mount.host} ({'read-only' if mount.read_only else 'read-write'})"
    for cache in profile.caches.values():
        if cache.host is not None:
            yield f"{cache.host} (read-write)"
    yield from own.devices
    yield from own.cap_add
    if own.network == "host":
        yield "the host's network"
    if profile.ipc == "host":
        yield "the host's IPC"


def note(deployment: Deployment, service: str) -> str:
    """The line to print before a service's first start, and when what it gets has changed; else "".

    What was printed is kept in .envgen; if that is not writable, it is printed at every start.
    """
    words, sets, digest = list(granted(deployment.profile, service)), list[str](), ""
    if deployment.profile.compose is not None:
        added = _Added(deployment, service)
        words, sets, digest = [*words, *added.access], added.sets, added.digest
    words = list(dict.fromkeys(words))
    record, name = state_dir(deployment.root) / "granted.json", f"{deployment.profile.name}/{service}"
    printed, now = dict[str, Any](), [*words, *([digest] if digest else [])]
    with contextlib.suppress(OSError, ValueError, AttributeError):
        printed = dict(json.loads(files.read(record, limit=LIMIT)).items())
    if not now or printed.get(name) == now:
        return ""
    with contextlib.suppress(OSError):
        text = json.dumps({**printed, name: now}, indent=1, sort_keys=True) + "\n"
        files.write(record, text.encode(), within=deployment.root)
    sentences = [f"{service} has access to {', '.join(words)}"] if words else []
    before = printed.get(name)
    if isinstance(before, list) and (new := [word for word in words if word not in before]):
        sentences.append(f"new since its last start: {', '.join(new)}")
    if deployment.profile.compose is not None:
        file = str(deployment.profile.compose)
        sentences.append(f"{file} sets its {', '.join(sets)}" if sets else "")
        if not sets and not added.access:
            sentences.append(f"{file} changes nothing of {service}")
    return "; ".join(filter(None, sentences))


# Keys of a Compose service that give it nothing of the machine. Every other key is printed with its value, so that one
# that Compose learns later is printed, too.
_QUIET = re.compile(
    "annotations|attach|command|container_name|cpu.*|depends_on|develop|entrypoint|env_file|environment|expose|"
    "healthcheck|hostname|image|init|labels|logging|mem_.*|memswap_limit|platform|profiles|pull_policy|read_only|"
    "restart|scale|shm_size|stdin_open|stop_grace_period|stop_signal|tmpfs|tty|ulimits|user|working_dir"
)
_WHOLE = {
    ("privileged", "true"): "all devices and rights of the host (privileged)",
    ("network_mode", "host"): "the host's network",
    ("ipc", "host"): "the host's IPC",
    ("pid", "host"): "the host's processes",
    ("use_api_socket", "true"): "the Docker Engine (use_api_socket)",
}
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)|([A-Za-z_]\w*))")


class _Added:
    """What the profile's own Compose file adds to a service, and to those that Compose starts with it.

    ``access``: in a few words each; ``sets``: the other keys that it sets; ``digest``: of all of it. Variables stay
    unresolved: none of their values is read.
    """

    def __init__(self, deployment: Deployment, service: str) -> None:
        assert deployment.profile.compose is not None
        file = deployment.root / own_path(deployment.profile.compose.path)
        alone = replace(deployment.compose, files=[one for one in deployment.compose.files if one != file])
        self._before, self._now = (one.config(interpolate=False) for one in (alone, deployment.compose))
        self.access, self.sets, self.digest = list[str](), list[str](), ""
        started, queue = list[str](), [service]
        while queue:
            if (name := queue.pop(0)) not in started:
                started.append(name)
                queue += _mapping(_mapping(_mapping(self._now.get("services")).get(name)).get("depends_on"))
        found = {name: self._service(name, "" if name == service else f"{name}: ") for name in started}
        read = {one.name: files.read(one).decode(errors="replace") for one in all_files(file, deployment.root)}
        top = [self._now.get(key) for key in ("volumes", "networks", "secrets", "configs")]
        known = {*_variables(self._before), *_bare(self._before)}
        env_files = [text for name, text in read.items() if not name.endswith((".yaml", ".yml"))]
        lines = [line for text in env_files for line in text.splitlines() if not line.lstrip().startswith("#")]
        wanted = dict.fromkeys([*_variables([found, top, lines]), *_bare(self._now)])
        self.access += [f"${name} of your shell" for name in wanted if name not in known]
        whole = json.dumps([found, read, top], sort_keys=True, default=str)
        self.digest = "sha256:" + hashlib.sha256(whole.encode()).hexdigest()

    def _service(self, name: str, label: str) -> Mapping[str, Any]:
        before, now = (_mapping(_mapping(one.get("services")).get(name)) for one in (self._before, self._now))
        changed = {key: value for key, value in now.items() if value is not None and before.get(key) != value}
        for key, value in changed.items():
            if _QUIET.fullmatch(key):
                self.sets.append(label + key)
                continue
            entries = list(_entries(value))
            older = list(_entries(before.get(key)))
            for entry in entries:
                if entry not in older and (words := self._words(key, entry)):
                    self.access.append(label + redact(visible(shorten(words, SHOWN))))
        return changed

    def _words(self, key: str, entry: Any) -> str:
        """One entry of a key; "" for one that gives nothing of the machine."""
        at = _mapping(entry)
        if key == "volumes" and at.get("type") == "volume":
            described = _mapping(_mapping(self._now.get("volumes")).get(str(at.get("source"))))
            options = _mapping(described.get("driver_opts"))
            return f"{options['device']} (a volume)" if options.get("device") else ""
        if key == "volumes" and at.get("type") == "tmpfs":
            return ""
        if key == "volumes" and at.get("source"):
            return f"{at['source']} ({'read-only' if at.get('read_only') else 'read-write'})"
        if key == "devices" and at.get("source"):
            return str(at["source"])
        if key in ("devices", "cap_add"):
            return str(entry)
        if key == "ports" and at.get("published"):
            return f"port {at['published']}"
        if key in ("secrets", "configs"):  # files of the project, or variables, which are listed by name
            return ""
        text = entry if isinstance(entry, str) else json.dumps(entry)
        return _WHOLE.get((key, text), f"{key}: {text}")


def _mapping(found: Any) -> Mapping[str, Any]:
    return found if isinstance(found, dict) else {}


def _entries(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _strings(one)


def _variables(value: Any) -> Iterator[str]:
    """The variables that Compose would replace in the texts of ``value``."""
    for text in _strings(value):
        for found in _VARIABLE.finditer(text.replace("$$", "")):
            yield found[1] or found[2]


def _bare(document: Mapping[str, Any]) -> Iterator[str]:
    """The variables that Compose passes on without being written as one: `environment: [NAME]`, a secret's source."""
    for service in _mapping(document.get("services")).values():
        yield from (name for name, value in _mapping(_mapping(service).get("environment")).items() if value is None)
    for kind in ("secrets", "configs"):
        for one in _mapping(document.get(kind)).values():
            yield from filter(None, [_mapping(one).get("environment")])
