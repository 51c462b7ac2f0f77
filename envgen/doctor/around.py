"""What this machine has around a container: disk, plug-ins, ports, limits, and files of root."""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from envgen import files
from envgen.deployment import Deployment
from envgen.engine.endpoint import plugin_version
from envgen.engine.host import memory_limits
from envgen.engine.owner import caller
from envgen.engine.values import Container, EngineInfo
from envgen.errors import EnvgenError
from envgen.patches.source import build_requires
from envgen.profile.model import Profile
from envgen.render import environment as promised
from envgen.serve.preflight import holders

T = TypeVar("T")
MOST = 50_000  # entries of a folder that are searched for files of root, breadth first


@dataclass(frozen=True)
class Foreign:
    """Files of root below a folder. ``name``: the source or cache; ``examples``: some of the paths."""

    name: str
    folder: str
    count: int
    examples: tuple[str, ...]


@dataclass(frozen=True)
class Host:
    """Facts about this machine. None: unknown or, for a version, not installed."""

    disk_path: str = ""
    disk_free: int | None = None
    buildx: str | None = ""
    compose: str | None = ""
    busy_ports: tuple[tuple[int, str], ...] = ()  # (port, what uses it)
    limits: Mapping[str, int] = field(default_factory=dict)  # cgroup that holds containers -> bytes that it may use


def or_none(ask: Callable[[], T]) -> T | None:
    """The result; None if it fails."""
    try:
        return ask()
    except (EnvgenError, OSError):
        return None


def foreign(profile: Profile, root: Path) -> tuple[Foreign, ...]:
    """The folders of the profile that contain files of root; none if envgen runs as root."""
    machine = promised.compose_environment(profile, root)
    wanted = {name: promised.checkout_variable(name) for name in profile.mounted_sources}
    wanted |= {f"cache {name}": promised.cache_variable(name) for name, cache in profile.caches.items() if cache.host}
    if caller()[0] == 0:
        return ()
    places = {name: machine[variable] for name, variable in wanted.items() if machine.get(variable)}
    found = {name: of_root(folder) for name, folder in places.items()}
    return tuple(Foreign(name, places[name], len(paths), tuple(paths[:3])) for name, paths in found.items() if paths)


def of_root(folder: str, most: int = MOST) -> list[str]:
    """Paths in ``folder`` that belong to root, itself included; links are not followed."""
    try:
        found = [folder] if is_of_root(folder, os.lstat(folder)) else []
    except OSError:
        return []
    folders, seen = deque([folder]), 0
    while folders and seen < most:
        try:
            with os.scandir(folders.popleft()) as entries:
                for entry in entries:
                    seen += 1
                    if is_of_root(entry.path, entry.stat(follow_symlinks=False)):
                        found.append(entry.path)
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
        except OSError:
            continue  # readable by root only, and counted above
    return found


def is_of_root(_path: str, status: os.stat_result) -> bool:
    return status.st_uid == 0


def build_needs(profile: Profile, root: Path) -> frozenset[str]:
    """The build requirements of mounted checkouts, which envgen-install installs beside the image's packages."""
    found: set[str] = set()
    for source in profile.mounted_sources.values():
        assert source.origin.checkout is not None
        file = root / Path(source.origin.checkout.path).expanduser() / "pyproject.toml"
        text = or_none(lambda at=file: files.read(at).decode("utf-8", "replace"))  # type: ignore[misc]
        found.update(build_requires(text or ""))
    return frozenset(found)


def host_facts(info: EngineInfo | None, ports: tuple[tuple[int, str], ...] = ()) -> Host:
    local = info is not None and info.local
    return Host(
        disk_path=info.data_root if info else "",
        disk_free=or_none(lambda: shutil.disk_usage(info.data_root).free) if info and local else None,
        buildx=or_none(lambda: plugin_version("buildx")),
        compose=or_none(lambda: plugin_version("compose")),
        busy_ports=ports,
        limits=memory_limits() if local else {},
    )


def busy_ports(deployment: Deployment, containers: Sequence[Container]) -> tuple[tuple[int, str], ...]:
    """The ports of services that don't run, with what uses them."""
    running = {one.service for one in containers if one.state == "running"}
    mine = {port.host for one in containers if one.state == "running" for port in one.ports}
    wanted = [
        port
        for name, service in (or_none(lambda: deployment.effective) or deployment.profile).services.items()
        if name not in running
        for port in service.host_ports
        if port.host not in mine
    ]
    holder = or_none(lambda: holders(deployment)) if wanted else None
    return tuple({port.host: who for port in wanted if holder and (who := holder(port))}.items())
