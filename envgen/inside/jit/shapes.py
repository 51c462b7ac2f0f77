"""The shapes of the agent's answers: built here, sent as JSON, and bound to the same classes by the
host.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Iterable

NAMED = 40  # files listed for one reason; the rest are counted


@dataclass
class Reason:
    """A reason for the state of a module. ``stale``: it makes it stale; else it is a note.
    ``files``: the first of its files; ``more``: the number of others.
    """

    kind: str
    message: str
    stale: bool
    files: list[str]
    more: int


@dataclass
class Module:
    """One folder in ``cached_ops``.

    ``kind``: ninja (has a build.ninja), cute_dsl (from 0.6.16: meta.json, objects), link or other
    (kda_ptx, ...). ``built``: its .so exists. ``modified``: the time of the .so, else of the newest
    file. ``locked``: None if unknown. ``unread``: the number of unreadable parts. ``state``: see
    docs/jit-cache.md; ``guess``: without a baseline as proof. ``baseline``: none, recorded or
    outdated (of an earlier build). ``checked``: the number of compared files. ``seconds``: its
    compilation, by FlashInfer's own log; 0: unknown.
    """

    version: str
    arch: str
    name: str
    kind: str = "link"
    bytes: int = 0
    files: int = 0
    objects: int = 0
    built: bool = False
    modified: float = 0.0
    locked: bool | None = False
    unread: int = 0
    state: str = "unknown"
    guess: bool = False
    baseline: str = "none"
    reasons: list[Reason] = field(default_factory=list)
    checked: int = 0
    seconds: float = 0.0

    def add(
        self, kind: str, message: str, files: Iterable[str] = (), *, stale: bool = True
    ) -> None:
        """Add a reason. One with ``stale`` makes the module stale; others (a needless rebuild
        ahead) don't.
        """
        names = list(files)
        more = max(0, len(names) - NAMED)
        self.reasons.append(Reason(kind, message, stale, names[:NAMED], more))

    def count_files(self) -> None:
        """Leave out the names of files; they are only counted."""
        for reason in self.reasons:
            reason.more += len(reason.files)
            reason.files = []

    def prove(self, kind: str, message: str, files: Iterable[str] = ()) -> None:
        """Add a reason that makes it certainly stale."""
        self.add(kind, message, files)
        self.guess = False


@dataclass
class BaselineRecord:
    """One recorded baseline, or the reason for none, with the files that changed."""

    name: str
    recorded: bool
    reason: str
    changed: list[str]


@dataclass(frozen=True)
class ImportedPackage:
    """The FlashInfer that the service imports; empty: none, or unknown. ``prebuilt``: the packages
    of prebuilt libraries, in words.
    """

    root: str = ""
    version: str = ""
    prebuilt: tuple[str, ...] = ()


@dataclass(frozen=True)
class RecordedBaseline:
    """The answer of ``baseline``."""

    modules: tuple[BaselineRecord, ...]
    place: str = ""


@dataclass(frozen=True)
class Leftovers:
    """Leftovers of killed clears, which the next clear deletes."""

    count: int
    bytes: int


@dataclass(frozen=True)
class Inventory:
    """Everything in the cache. ``building``: paths of the locks of running batch builds; ``place``:
    where the agent ran.
    """

    root: str
    exists: bool
    modules: tuple[Module, ...] = ()
    building: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    package: ImportedPackage = ImportedPackage()
    place: str = ""


@dataclass(frozen=True)
class ModuleTarget:
    """A module to remove.

    ``damaged``: its build.ninja could not be parsed completely. ``gone``: it was removed.
    """

    version: str
    arch: str
    name: str
    bytes: int
    files: int
    damaged: bool
    gone: bool


@dataclass(frozen=True)
class Generated:
    """A path below ``generated`` to remove, or to keep because the modules ``kept_for`` compile it
    too.
    """

    path: str
    bytes: int
    files: int
    kept_for: tuple[str, ...]
    gone: bool


@dataclass(frozen=True)
class Cleared:
    """The plan (``dry_run``) or result of a clear. ``restart``: running services and containers with
    this cache, which keep what they have loaded.

    ``guesses``: modules that are possibly stale, and stay.
    """

    root: str
    dry_run: bool
    modules: tuple[ModuleTarget, ...]
    generated: tuple[Generated, ...]
    leftovers: Leftovers
    freed: int
    problems: tuple[str, ...]
    errors: tuple[str, ...]
    place: str = ""
    restart: tuple[str, ...] = ()
    guesses: tuple[str, ...] = ()


@dataclass(frozen=True)
class AgentRefusal:
    """Data of an agent's refusal. ``missing``: names and globs that match nothing; ``names``: all
    modules.
    ``held``: paths of locks.
    """

    missing: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    held: tuple[str, ...] = ()


@dataclass(frozen=True)
class AgentFailed:
    """An agent's answer without a result. ``kind``: not_found, refused or failed."""

    kind: str
    message: str
    data: AgentRefusal
