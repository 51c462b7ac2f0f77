"""The parts of this machine that a service can use: printed before its first start, and again when they change."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from envgen import files
from envgen.files import state_dir
from envgen.profile.model import Profile

LIMIT = 1 << 20  # of the record


def granted(profile: Profile, service: str) -> Iterator[str]:
    """Folders of the host, devices, capabilities and namespaces, each in a few words."""
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
        yield f"what {profile.compose} adds"


def note(profile: Profile, root: Path, service: str) -> str:
    """The line to print before a service's first start, and when its list has changed; else "".

    The printed lists are kept in .envgen; if that is not writable, they are printed at every start.
    """
    words = list(dict.fromkeys(granted(profile, service)))
    record, name, printed = state_dir(root) / "granted.json", f"{profile.name}/{service}", dict[str, list[str]]()
    with contextlib.suppress(OSError, ValueError, AttributeError):
        printed = dict(json.loads(files.read(record, limit=LIMIT)).items())
    if not words or printed.get(name) == words:
        return ""
    with contextlib.suppress(OSError):
        text = json.dumps({**printed, name: words}, indent=1, sort_keys=True) + "\n"
        files.write(record, text.encode(), within=root)
    return f"{service} has access to {', '.join(words)}"
