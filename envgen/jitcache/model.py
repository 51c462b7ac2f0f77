"""What the agent answers, as frozen values. Its JSON dies in ``bind``: a wrong shape is an error here, not later."""

from __future__ import annotations

from dataclasses import dataclass

from envgen.inside.jit.module import Holder, Module


@dataclass(frozen=True)
class Package:
    """The FlashInfer that the service imports. Empty: none, or it could not be asked."""

    root: str = ""
    version: str = ""


@dataclass(frozen=True)
class Record:
    """One baseline that was recorded, or why it was not and which files speak against it."""

    version: str
    arch: str
    name: str
    recorded: bool
    files: int
    reason: str
    changed: tuple[str, ...]


@dataclass(frozen=True)
class Recorded:
    """The answer of ``baseline``."""

    root: str
    modules: tuple[Record, ...]
    problems: tuple[str, ...]
    place: str = ""


@dataclass(frozen=True)
class Used:
    """The answer of ``used``: modules that were ever compiled or loaded here."""

    names: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Building:
    """A batch build that runs in one version and arch (FlashInfer's build_jit_specs)."""

    version: str
    arch: str
    locked: bool | None
    holders: list[Holder]
    lock: tuple[int, ...] = ()


@dataclass(frozen=True)
class Leftovers:
    """What killed clears and loads left. The next one deletes it."""

    count: int
    bytes: int


@dataclass(frozen=True)
class Inventory:
    """Everything in the cache. ``place`` = where it was read, for people."""

    root: str
    exists: bool
    modules: tuple[Module, ...]
    building: tuple[Building, ...]
    leftovers: Leftovers
    problems: tuple[str, ...]
    package: Package = Package()
    place: str = ""


@dataclass(frozen=True)
class Target:
    """A module that was (or would be) removed.

    ``damaged``: its build.ninja could not be understood whole. ``libraries``: inodes. ``gone``: it was removed.
    """

    version: str
    arch: str
    name: str
    bytes: int
    files: int
    damaged: bool
    libraries: tuple[int, ...]
    gone: bool
    why: str = ""


@dataclass(frozen=True)
class Generated:
    """A path below ``generated`` that was (or would be) removed; or stays ``kept_for`` modules that compile it too."""

    path: str
    bytes: int
    files: int
    modules: tuple[str, ...]
    kept_for: tuple[str, ...]
    gone: bool


@dataclass(frozen=True)
class User:
    """A process that has loaded a removed module's library."""

    pid: int
    command: str
    modules: tuple[str, ...]
    where: str = ""


@dataclass(frozen=True)
class Cleared:
    """The plan (``dry_run``) or the deed. ``restart`` = services and containers that still use what is gone."""

    root: str
    dry_run: bool
    modules: tuple[Target, ...]
    generated: tuple[Generated, ...]
    leftovers: Leftovers
    freed: int
    users: tuple[User, ...]
    unseen: int
    problems: tuple[str, ...]
    errors: tuple[str, ...]
    place: str = ""
    restart: tuple[str, ...] = ()
    guesses: tuple[str, ...] = ()


@dataclass(frozen=True)
class Looked:
    """What one more container says: who holds each lock that was asked about, and who has loaded a library."""

    holders: tuple[tuple[Holder, ...], ...]
    users: tuple[User, ...]
    unseen: int


@dataclass(frozen=True)
class HeldLock:
    """A lock that is in the way of a clear."""

    lock: str
    device: int
    inode: int
    holders: list[Holder]


@dataclass(frozen=True)
class Refusal:
    """What an agent's refusal holds beside its sentence. ``missing``: names and globs that match nothing."""

    missing: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    held: tuple[HeldLock, ...] = ()


@dataclass(frozen=True)
class Failure:
    """An agent's answer without a result. ``kind``: not_found, refused or failed."""

    kind: str
    message: str
    data: Refusal
