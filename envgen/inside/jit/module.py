"""One module as it is now: what its folder takes, how old it is, and whether it is being built."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import List, Optional, Tuple

from envgen.inside.jit.fault import Fault
from envgen.inside.jit.layout import Entry, Shelf
from envgen.inside.jit.locks import Held, acquire_inside
from envgen.inside.jit.tree import GONE, Measure, measure, note, opened, reason

MANY = 40  # files named for one reason; the rest are counted


@dataclass
class Holder:
    """A process that holds a lock. ``where`` = the service or container it runs in; empty: where the agent ran."""

    pid: int
    command: str
    where: str = ""


@dataclass
class Reason:
    """One thing that speaks against a module. ``stale``: it makes it stale; else it is worth knowing. ``files``: which
    files, the first of them; ``more``: how many others."""

    kind: str
    message: str
    stale: bool
    files: List[str]
    more: int


@dataclass
class Module:
    """One folder in ``cached_ops``.

    ``kind``: ninja (has a build.ninja), cute_dsl (from 0.6.16: meta.json, objects), link or other (kda_ptx, ...).
    ``built``: its .so is there. ``modified``: when that was linked, else its youngest file. ``locked``: None when it
    can't be told; ``lock``: device and inode of the lock that is held. ``unread``: parts that stay unseen. ``state``:
    see docs/jit-cache.md; ``guess``: no baseline proves it. ``baseline``: none, recorded or outdated (of an earlier
    build). ``checked``: how many files were compared.
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
    locked: Optional[bool] = False
    lock: List[int] = field(default_factory=list)
    holders: List[Holder] = field(default_factory=list)
    unread: int = 0
    state: str = "unknown"
    guess: bool = False
    baseline: str = "none"
    reasons: List[Reason] = field(default_factory=list)
    checked: int = 0

    def add(self, kind: str, message: str, files: list[str] | None = None, *, stale: bool = True) -> None:
        """Add a reason. ``stale`` ones make a module stale; others (a needless rebuild ahead) don't."""
        names = files or []
        self.reasons.append(Reason(kind, message, stale, names[:MANY], max(0, len(names) - MANY)))

    @property
    def stale(self) -> bool:
        return any(reason.stale for reason in self.reasons)


def describe(shelf: Shelf, entry: Entry, problems: list[str]) -> Module | None:
    """None: it is gone."""
    found = Module(shelf.version, shelf.arch, entry.name)
    if entry.kind == "link":
        return found
    found.kind = "other"
    try:
        with opened(entry.name, shelf.fd) as fd:
            total, names = measure(fd, Measure()), os.listdir(fd)
    except OSError as error:
        if error.errno in GONE:
            return None
        note(problems, shelf.shown + "/" + entry.name + ": " + reason(error))
        found.unread = 1
        return found
    for text in total.unread:
        note(problems, shelf.shown + "/" + entry.name + "/" + text)
    if "build.ninja" in names:
        found.kind = "ninja"
    elif "meta.json" in names or entry.name.endswith("_cute_dsl"):
        found.kind = "cute_dsl"
    found.bytes, found.files, found.objects, found.unread = total.bytes, total.files, total.objects, len(total.unread)
    linked = [time for name, _, time in total.libraries if name == entry.name + ".so"]
    found.built, found.modified = bool(linked), linked[0] if linked else total.newest
    found.locked, found.lock = lock_of(shelf, entry.name + ".lock", problems)
    return found


def lock_of(shelf: Shelf, name: str, problems: list[str]) -> Tuple[Optional[bool], List[int]]:
    """Is this lock of the shelf held (None: it can't be told), and which file that is."""
    try:
        acquire_inside("tmp/" + name, shelf.fd, shelf.shown + "/tmp/" + name, dry=True)
    except Held as held:
        return True, [held.device, held.inode]
    except Fault as fault:
        note(problems, fault.message)
        return None, []
    return False, []
