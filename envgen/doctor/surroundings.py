"""What is around the container: the engine's own facts, the image, what the profile promises, and this machine."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from envgen.doctor import expectation
from envgen.doctor.model import Host, Wish
from envgen.engine.base import Container, Engine, EngineInfo
from envgen.engine.endpoint import find_plugin
from envgen.engine.jobs import capacity
from envgen.engine.ports import conflict, listening, owner
from envgen.errors import EnvgenError
from envgen.profile.model import Profile
from envgen.render.environment import checkout_variable, compose_environment

T = TypeVar("T")


def look(wish: Wish, service: str, containers: Sequence[Container], engine: Engine) -> dict[str, Any]:
    """The parts of a Context that need no exec."""
    profile = wish.profile
    info = attempt(engine.info)
    image = attempt(lambda: engine.image(profile.image_name))
    return {
        "engine": info,
        "image": image,
        "host": host_facts(profile, info, busy_ports(profile, containers, engine)),
        "env": expectation.service_env(profile, service),
        "others": tuple(one for one in containers if one.service != service),
        "checkouts": _checkouts(profile, wish.root) if info and info.endpoint.startswith("unix://") else {},
        "digest": attempt(lambda: expectation.image_digest(profile, wish.root, image.labels if image else None)) or "",
    }


def _checkouts(profile: Profile, root: Path) -> dict[str, str]:
    machine = compose_environment(profile, root)
    return {name: machine[checkout_variable(name)] for name in profile.mounted_sources
            if checkout_variable(name) in machine}  # fmt: skip


def attempt(ask: Callable[[], T]) -> T | None:
    """A fact that can't be had is None."""
    try:
        return ask()
    except EnvgenError:
        return None


def host_facts(profile: Profile, info: EngineInfo | None, ports: tuple[tuple[int, str], ...] = ()) -> Host:
    """What costs next to nothing to know: some files, some system calls."""
    room = capacity(info)
    local = info is not None and info.endpoint.startswith("unix://")
    return Host(
        memory_available=room.memory or None,
        disk_path=info.data_root if info else "",
        disk_free=_disk_free(info.data_root) if info and local else None,
        buildx=find_plugin("buildx") is not None,
        compose=find_plugin("compose") is not None,
        busy_ports=ports,
    )


def busy_ports(profile: Profile, containers: Sequence[Container], engine: Engine) -> tuple[tuple[int, str], ...]:
    """The ports of services that don't run, and who has them."""
    running = {one.service for one in containers if one.state == "running"}
    wanted = [port for name, service in profile.services.items() if name not in running for port in service.ports]
    mine = {port.host for one in containers if one.state == "running" for port in one.ports}
    listeners = listening() if wanted else ()
    found: dict[int, str] = {}
    everyone: Sequence[Container] | None = None
    for port in wanted:
        listener = conflict(listeners, port.host, port.address)
        if listener is None or port.host in mine:
            continue
        if everyone is None:
            everyone = attempt(engine.containers) or ()
        found[port.host] = owner(listener, everyone)
    return tuple(found.items())


def _disk_free(path: str) -> int | None:
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None  # the engine is on another machine
