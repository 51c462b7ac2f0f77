"""What is around the container: the engine's own facts, the image, what the profile promises, and this machine."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from envgen.doctor import expectation
from envgen.doctor.model import Host
from envgen.engine.endpoint import find_plugin
from envgen.errors import EnvgenError

if TYPE_CHECKING:
    from envgen.doctor.gather import Connect, Wish
    from envgen.engine.base import Container

T = TypeVar("T")


def look(wish: Wish, service: str, containers: Sequence[Container], connect: Connect) -> dict[str, Any]:
    """The parts of a Context that need no exec. A connection of its own: the other one is busy with the probe."""
    profile, engine = wish.profile, connect()
    info = _try(engine.info)
    running = {one.service for one in containers if one.state == "running"}
    waiting = [service for name, service in profile.services.items() if name not in running]
    ports = [mapping.host for service in waiting for mapping in service.ports]
    return {
        "engine": info,
        "image": _try(lambda: engine.image(profile.image_name)),
        "host": host_facts(info.data_root if info else "", ports, wish.max_jobs),
        "env": expectation.service_env(profile, service),
        "digest": _try(lambda: expectation.image_digest(profile, wish.root)) or "",
    }


def _try(ask: Callable[[], T]) -> T | None:
    """A fact that can't be had is None."""
    try:
        return ask()
    except EnvgenError:
        return None


def host_facts(data_root: str, ports: Sequence[int], max_jobs: int | None) -> Host:
    """Facts that cost nothing: two files, two system calls, and a look at the ports."""
    return Host(
        memory_available=_memory_available(),
        disk_path=data_root,
        disk_free=_disk_free(data_root),
        busy_ports=tuple((port, "another program of this machine") for port in dict.fromkeys(ports) if _is_busy(port)),
        max_jobs=max_jobs,
        buildx=find_plugin("buildx") is not None,
        compose=find_plugin("compose") is not None,
    )


def _memory_available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _disk_free(path: str) -> int | None:
    try:
        return shutil.disk_usage(path).free if path else None
    except OSError:
        return None  # the engine is on another machine


def _is_busy(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return True
    return False
