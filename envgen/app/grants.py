"""The parts of this machine that a service can use: printed before its first start, and again when they change."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from typing import Any

from envgen import files
from envgen.deployment import Deployment
from envgen.files import state_dir
from envgen.profile.model import Profile
from envgen.profile.values import own_path

LIMIT = 1 << 20  # bytes of the record, and of a Compose file


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
    if profile.compose is not None:
        yield f"whatever {profile.compose} gives it"


def note(deployment: Deployment, service: str) -> str:
    """The line to print before a service's first start, and when what it gets has changed; else "".

    What was printed is kept in .envgen; if that is not writable, it is printed at every start.
    """
    profile = deployment.profile
    words = list(dict.fromkeys(granted(profile, service)))
    now = list(words)
    if profile.compose is not None:
        content = files.read(deployment.root / own_path(profile.compose.path), limit=LIMIT)
        now.append(hashlib.sha256(content).hexdigest())
    record, name = state_dir(deployment.root) / "granted.json", f"{profile.name}/{service}"
    printed = dict[str, Any]()
    with contextlib.suppress(OSError, ValueError, AttributeError):
        printed = dict(json.loads(files.read(record, limit=LIMIT)).items())
    if not now or printed.get(name) == now:
        return ""
    with contextlib.suppress(OSError):
        text = json.dumps({**printed, name: now}, indent=1, sort_keys=True) + "\n"
        files.write(record, text.encode(), within=deployment.root)
    return f"{service} has access to {', '.join(words)}"
