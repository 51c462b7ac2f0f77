"""Which inputs `envgen lock --upgrade` moves. Nothing else does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from packaging.utils import canonicalize_name

from envgen.errors import UsageError
from envgen.lock.ask import models_of, repositories
from envgen.lock.model import Lock, PythonLock
from envgen.profile.model import Profile
from envgen.profile.tree import near

FAMILY = "flashinfer"  # its packages are of one release, or they refuse each other


@dataclass(frozen=True)
class Upgrade:
    """``names`` is what the user wrote; ``everything`` where he named nothing in particular."""

    names: tuple[str, ...] = ()
    everything: bool = False

    def wants(self, *names: str) -> bool:
        """True when one of these inputs shall move."""
        return self.everything or any(name in self.names for name in names)

    def wants_python(self, profile: Profile, lock: Lock) -> bool:
        """True when a Python package of this profile shall move."""
        if self.wants("pip"):
            return True
        have = lock.python.get(profile.name, {})
        pins = {pin.name for found in have.values() for pins in found.sets.values() for pin in pins}
        return any(name in self.names or self._moves(name) for name in pins) or any(
            name in self.names for name, source in profile.sources.items() if source.origin.wheel or source.origin.pypi
        )

    def _moves(self, package: str) -> bool:
        names: list[str] = [canonicalize_name(name) for name in self.names]
        if self.everything or package in names:
            return True
        return package.startswith(FAMILY) and any(name.startswith(f"{FAMILY}-") for name in names)


def keep(have: Mapping[str, PythonLock], upgrade: Upgrade, profile: Profile) -> dict[str, dict[str, str]]:
    """set -> package -> version: what stays where it is, unless something else makes it move."""
    if upgrade.wants("pip"):
        return {}
    found: dict[str, dict[str, str]] = {}
    for python in have.values():
        for name, pins in python.sets.items():
            source = name.partition(".")[2]
            if source in upgrade.names and source in profile.sources and not profile.sources[source].origin.git:
                continue
            for pin in pins:
                if not upgrade._moves(pin.name):
                    found.setdefault(name, {})[pin.name] = pin.version
    return found


def checked(names: Sequence[str], profiles: Sequence[Profile], lock: Lock) -> tuple[str, ...]:
    """``names``, if each is an input; UsageError with the nearest one."""
    known = {"base", "pip", "apt"}
    for profile in profiles:
        known |= {
            str(profile.base.image),
            *profile.sources,
            *models_of(profile),
            *(one.name for one in repositories(profile)),
        }
        for python in lock.python.get(profile.name, {}).values():
            known |= {pin.name for pins in python.sets.values() for pin in pins}
    for name in names:
        if name not in known and canonicalize_name(name) not in known:
            raise UsageError(f"there is no input {name!r} to upgrade", hint=near(name, sorted(known)))
    return tuple(names)
