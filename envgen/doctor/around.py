"""What this machine has around a container: room on its disk, and what checkouts ask for."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from envgen import files
from envgen.engine.values import EngineInfo
from envgen.errors import EnvgenError
from envgen.patches.source import build_requires
from envgen.profile.model import Profile

T = TypeVar("T")


@dataclass(frozen=True)
class Host:
    """Room on this machine. None: unknown."""

    disk_path: str = ""
    disk_free: int | None = None


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


def host_facts(info: EngineInfo | None) -> Host:
    local = info is not None and info.local
    return Host(
        disk_path=info.data_root if info else "",
        disk_free=or_none(lambda: shutil.disk_usage(info.data_root).free) if info and local else None,
    )
