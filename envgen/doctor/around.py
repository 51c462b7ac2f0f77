"""What this machine has around a container: disk, plug-ins and ports."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from envgen import files
from envgen.deployment import Deployment
from envgen.engine.endpoint import plugin_version
from envgen.engine.values import Container, EngineInfo
from envgen.errors import EnvgenError
from envgen.patches.source import build_requires
from envgen.profile.model import Profile
from envgen.serve.preflight import holders

T = TypeVar("T")


@dataclass(frozen=True)
class Host:
    """Facts about this machine. None: unknown or, for a version, not installed."""

    disk_path: str = ""
    disk_free: int | None = None
    buildx: str | None = ""
    compose: str | None = ""
    busy_ports: tuple[tuple[int, str], ...] = ()  # (port, what uses it)


def or_none(ask: Callable[[], T]) -> T | None:
    """The result; None if it fails."""
    try:
        return ask()
    except (EnvgenError, OSError):
        return None


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
